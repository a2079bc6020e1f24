// A job: its phases, why it is pending, how it ended, what it runs with.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, count, plural, when } from '../format.js';
import { href } from '../route.js';
import { now } from '../store.js';
import { Few } from '../view/actorrow.js';
import { EventLines } from '../view/eventline.js';
import { State } from '../view/glyph.js';
import { Logs } from '../view/logs.js';
import { Age, Chain, Facts, Link, Rows, Section } from '../view/part.js';
import { Phases, Refusal } from '../view/jobs.js';
import { Title } from './title.js';

/** @param {{ of: any }} props */
export function JobBody({ of: d }) {
  const j = d.job;
  const env = Object.entries(d.environment ?? {});
  return html`<${Title} sign=${html`<${State} of=${j.state} />`} title=${j.name} sub=${html`for <${Age} since=${j.since} />`} />
    <${Phases} of=${j.phases} state=${j.state} />
    ${j.refusal ? html`<${Section} title="Why it is pending"><${Refusal} of=${j.refusal} /><//>` : null}
    ${j.exit ? html`<${Section} title="How it ended"><p class=${j.state === 'failed' ? 'tone-failed' : ''}>${j.exit.sentence}${j.exit.code === null ? '' : html` <code>exit ${j.exit.code}</code>`}</p><${Chain} of=${j.exit.chain} /><//>` : null}
    <${Facts} of=${facts(j)} />
    ${d.actors?.length ? html`<${Section} title="Actors" note=${j.actors > d.actors.length ? html`<a href=${href('actors', { f: `job:${j.id}` })}>all ${count(j.actors)}</a>` : count(d.actors.length)}><${Few} rows=${d.actors} label="Actors of the job" /><//>` : null}
    ${d.events?.length ? html`<${Section} title="Events" note=${html`<a href=${href('timeline', { sel: `job:${j.id}`, from: String(j.submitted) })}>in the timeline</a>`}><${EventLines} of=${[...d.events].reverse()} label="Events of the job" /><//>` : null}
    <${Logs} query=${{ job: j.id }} />
    ${d.files?.length ? html`<${Section} title="Files" note=${plural(d.files.length, 'file')}><${Rows} label="Files" head=${['name', 'size']} right=${[1]} rows=${d.files.map((f) => [f.name, bytes(f.bytes)])} /><//>` : null}
    ${env.length ? html`<${Section} title="Environment"><${Rows} label="Environment" head=${['name', 'value']} rows=${env.map(([k, v]) => [html`<code>${k}</code>`, html`<code>${v}</code>`])} /><//>` : null}`;
}

/** @param {any} j @returns {[string, any][]} */
function facts(j) {
  return [
    ['program', html`<code>${[j.program, ...j.arguments].join(' ')}</code>`],
    ['needs', j.needs || null],
    ['node', j.node ? html`<${Link} to=${{ kind: 'node', id: j.node, name: j.node }} />` : null],
    ['submitted', html`${when(j.submitted, now.value)}${j.by ? ` by ${j.by}` : ''}`],
    ['namespace', j.namespace],
    ['priority', String(j.priority)],
    ['attempt', `${j.attempt} of ${j.attempts}`],
    ['id', html`<code>${j.id}</code>`],
  ];
}
