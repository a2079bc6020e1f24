// Is anything wrong, and what changed in the last minutes.
// @ts-check
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { get } from '../api.js';
import { plural } from '../format.js';
import { href, patch, route } from '../route.js';
import { about } from '../store.js';
import { useView } from '../stream.js';
import { History } from '../view/chart.js';
import { EventLines } from '../view/eventline.js';
import { Bar } from '../view/filterbox.js';
import { State } from '../view/glyph.js';
import { Strip } from '../view/nodes.js';
import { Age, Link, Progress, Section, Toggle, Waits, toward } from '../view/part.js';
import { AllSeries } from '../view/spark.js';
import { Empty, View } from '../view/states.js';

export function Now() {
  const is = useView({ view: 'now' });
  const d = is.data;
  const empty = d && !d.nodes.length && !d.problems.length && !d.events.length;
  return html`<${Bar} title="Now" />
    <${View} of=${is} isEmpty=${empty} skeleton="blocks" empty=${html`<${Empty} title="Nothing runs yet" why="Nodes, actors and problems appear here as soon as something starts." run />`}>
      ${d ? html`<div class="page now">
        <${Run} at=${d} />
        <${Problems} of=${d.problems} />
        <${Waiting} of=${d.waiting ?? []} />
        <${Rates} of=${d.series} />
        <div class="two"><${Section} title="Cluster" note=${html`<a href=${href('cluster')}>all of it</a>`}><ul class="strips">${d.nodes.map((n) => html`<${Strip} key=${n.name} of=${n} />`)}</ul><//>
        <${Section} title="Events" note=${html`<a href=${href('events')}>all of them</a>`}><${EventLines} of=${[...d.events].reverse()} label="Last events" /><//></div>
      </div>` : null}
    <//>`;
}

/** How far back the totals are shown, in words of the address. @type {Record<string, [string, number]>} */
const ranges = { '5m': ['5 min', 300_000], '1h': ['1 h', 3_600_000], '6h': ['6 h', 21_600_000] };

/** What the whole does: lately as small lines, over a longer time as charts. @param {{ of: any[] }} props */
function Rates({ of }) {
  const exported = about.value?.exported;
  const at = exported ? '' : route.value.params.range ?? '';
  const chosen = ranges[at];
  const choice = Object.entries(ranges).map(([id, [word]]) => html`<${Toggle} key=${id} on=${id === at} onClick=${() => patch({ range: id === at ? null : id })}>${word}<//>`);
  return html`<${Section} title="Rates" note=${html`${chosen ? 'last' : 'last 15 minutes'} ${exported || !of.length ? null : html`<span class="choice" role="group" aria-label="Look back">${choice}</span>`}`}>
    ${chosen ? html`<${History} of=${of} ms=${chosen[1]} />` : html`<${AllSeries} of=${of} />`}<//>`;
}

/** How often it is asked how far the run is, and whether one is alone, in milliseconds. */
const runEvery = 5000;
const runsEvery = 30_000;

/** How far the run is, where there is one alone. @param {{ at: any }} props what the page shows; while it changes, the run is asked for, too */
function Run({ at }) {
  const [runs, set] = useState(/** @type {any[]} */ ([]));
  const asked = useRef(-runEvery);
  useEffect(() => {
    if (performance.now() - asked.current < (runs.length > 1 ? runsEvery : runEvery)) return;
    asked.current = performance.now();
    get('inspect/view', { view: 'runs' }).then((e) => set(e.data.runs), () => {});
  }, [at]);
  const [run] = runs;
  if (runs.length !== 1 || !run.progress?.of) return null;
  return html`<div class="progress line"><a class="thing" href=${href('runs')}>${run.name || run.recipe || 'run'}</a> <${Progress} of=${run} /></div>`;
}

/** @param {{ of: any[] }} props */
function Problems({ of }) {
  const order = [...of].sort((a, b) => Number(b.severity === 'error') - Number(a.severity === 'error') || b.since - a.since);
  return html`<${Section} title="Problems" note=${of.length ? html`<a href=${href('problems')}>${plural(of.length, 'problem')}</a>` : ''}>
    ${of.length ? html`<ul class="problems">${order.map((p) => html`<${Problem} key=${`${p.rule}${p.sentence}`} of=${p} />`)}</ul>`
      : html`<p class="calm"><${State} of="ok" word="Nothing is wrong." /></p>`}<//>`;
}

function Problem({ of: p }) {
  const more = p.count - p.subjects.length;
  const first = p.subjects[0];
  return html`<li class="problem ${first ? 'opens' : ''}" onClick=${opens(first)}><${State} of=${p.severity} />
    <span class="what"><span class="sentence">${p.sentence}</span> <span class="subjects">${p.subjects.map((s) => html`<${Link} key=${s.kind + s.id} to=${s} /> `)}${more > 0 && p.subjects.length ? html`<span class="dim">and ${more} more</span>` : null}</span></span>
    <span class="dim num lint">${p.rule.replaceAll('_', ' ')}</span><span class="dim since"><${Age} since=${p.since} /></span></li>`;
}

/** A click beside links and selected text opens the drawer. @param {import('../types').Subject | undefined} subject */
const opens = (subject) => (/** @type {any} */ e) => {
  if (subject && !e.target.closest('a') && !String(getSelection())) location.hash = toward(subject);
};

/** Who has waited longest, and whom for. @param {{ of: import('../types').Waiting[] }} props */
function Waiting({ of }) {
  if (!of.length) return null;
  return html`<${Section} title="Waiting" note="for a second or longer"><ul class="waiting">${of.map((w) => html`<li key=${w.subject.id} class="waits opens ${w.deadlock ? 'circle' : ''}" onClick=${opens(w.subject)}><span><${Waits} of=${w.subject} chain=${w.chain} circle=${w.circle} deadlock=${w.deadlock} /></span><span class="dim num"><${Age} since=${w.since} /></span></li>`)}</ul><//>`;
}
