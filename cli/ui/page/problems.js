// Problems: what is wrong, what shows it, what is done and what one can do; and what was wrong.
// @ts-check
import { html } from '../vendor/preact.js';
import { age, plural, value, when } from '../format.js';
import { chosen, select } from '../route.js';
import { now } from '../store.js';
import { useView } from '../stream.js';
import { known } from '../drawer/detail.js';
import { Bar } from '../view/filterbox.js';
import { State } from '../view/glyph.js';
import { Age, Link, Section } from '../view/part.js';
import { AllSeries } from '../view/spark.js';
import { Empty, View, marked } from '../view/states.js';
import { Table } from '../view/table.js';

export function Problems() {
  const is = useView({ view: 'problems' });
  const { now: present = [], past = [] } = is.data ?? {};
  return html`<${Bar} title="Problems" note=${present.length ? plural(present.length, 'problem') : ''} />
    <${View} of=${is} isEmpty=${!present.length && !past.length} skeleton="blocks" empty=${html`<${Empty} title="Nothing is wrong" why="Problems appear here with what shows them, and stay in the list when they are over." run />`}><div class="page wrongs">
      ${present.length ? present.map((it) => html`<${Shown} key=${`${it.problem.rule}${it.problem.subjects[0]?.id}${it.problem.since}`} of=${it} />`)
    : html`<p class="calm"><${State} of="ok" word="Nothing is wrong." /></p>`}
      <${Section} title="Over" note=${past.length ? 'the newest first' : ''}>
        ${past.length ? html`<${Table} fit=${20} label="Problems that are over" columns=${columns} rows=${past} keyOf=${(p) => `${p.rule}${p.since}${p.subject?.id ?? ''}`} onOpen=${open} />`
    : html`<p class="dim">Nothing was wrong.</p>`}<//>
    </div><//>`;
}

/** A problem with its evidence. @param {{ of: any }} props */
function Shown({ of: { problem: p, evidence, pictures } }) {
  const more = p.count - p.subjects.length;
  return html`<article class="wrong" aria-label=${p.sentence}>
    <h2><${State} of=${p.severity} /> <span class="dim">${p.rule.replaceAll('_', ' ')}, since ${when(p.since, now.value)}, for <${Age} since=${p.since} /></span></h2>
    <p class="sentence">${p.sentence}</p>
    ${p.subjects.length ? html`<p class="subjects">${p.subjects.map((/** @type {any} */ s) => html`<${Link} key=${s.kind + s.id} to=${s} /> `)}${more > 0 ? html`<span class="dim">and ${more} more</span>` : null}</p>` : null}
    <dl class="deeds">
      ${p.done ? html`<dt>Done</dt><dd>${p.done}</dd>` : null}
      ${p.advice ? html`<dt>You can</dt><dd>${marked(p.advice)}</dd>` : null}
      ${evidence.length ? html`<dt>Evidence</dt><dd>${evidence.map(([name, number]) => `${name} ${value(number, '')}`).join(', ')}</dd>` : null}
    </dl>
    <${AllSeries} of=${pictures} mark=${p.since} /></article>`;
}

/** @param {any} p */
const open = (p) => p.subject && known(p.subject.kind) && chosen(p.subject.kind) !== p.subject.id && select(p.subject.kind, p.subject.id);

/** @type {import('../types').Column[]} */
const columns = [
  { id: 'ended', title: 'Over', width: '112px', cell: (p) => html`<time class="num dim">${when(p.ended, now.peek())}</time>` },
  { id: 'lasted', title: 'Lasted', width: '72px', cell: (p) => html`<span class="num">${age(p.ended - p.since)}</span>` },
  { id: 'rule', title: 'Problem', width: '132px', cell: (p) => html`<span class="dim">${p.rule.replaceAll('_', ' ')}</span>` },
  { id: 'subject', title: 'Subject', width: 'minmax(96px, 0.6fr)', cell: (p) => (p.subject ? html`<${Link} to=${p.subject} />` : null) },
  { id: 'what', title: 'What', width: 'minmax(136px, 3fr)', cell: (p) => html`<span title=${p.sentence}>${p.sentence}</span>` },
];
