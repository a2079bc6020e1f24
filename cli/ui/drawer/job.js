// A job: its phases, why it is pending, how it ended, what it runs with.
// @ts-check
import { html } from '../vendor/preact.js';
import { digits, span, when } from '../format.js';
import { href } from '../route.js';
import { now } from '../store.js';
import { Actors } from '../view/actorrow.js';
import { Happened } from '../view/eventline.js';
import { Logs } from '../view/logs.js';
import { Age, Chain, Facts, Link, Rows, Section } from '../view/part.js';
import { Phases, Refusal } from '../view/jobs.js';
import { Title } from './title.js';

export function JobBody({ of: d }) {
  const j = d.job;
  return html`<${Title} state=${j.state} title=${j.name} sub=${html`for <${Age} since=${j.since} />`} />
    <${Phases} of=${j.phases} state=${j.state} />
    ${j.refusal ? html`<${Section} title="Why it is pending"><${Refusal} of=${j.refusal} /><//>` : null}
    ${j.exit ? html`<${Section} title="How it ended"><p class=${j.state === 'failed' ? 'tone-failed' : ''}>${j.exit.sentence}${j.exit.code === null ? '' : html` <code>exit ${j.exit.code}</code>`}</p><${Chain} of=${j.exit.chain} /><//>` : null}
    <${Facts} of=${facts(j)} />
    ${d.startup?.length ? html`<${Section} title="Start-up" note=${span(d.startup.reduce((/** @type {number} */ sum, /** @type {any} */ s) => sum + s.ms, 0))}><${Startup} of=${d.startup} /><//>` : null}
    <${Actors} rows=${d.actors} all=${j.actors} f=${`job:${j.id}`} label="Actors of the job" />
    <${Happened} of=${d.events} whose="the job" note=${html`<a href=${href('timeline', { sel: `job:${j.id}`, from: String(j.submitted) })}>in the timeline</a>`} />
    <${Logs} query=${{ job: j.id }} />`;
}

/** Stages of the start: over all nodes, then on each. @param {{ of: any[] }} props */
function Startup({ of }) {
  const nodes = [...new Set(of.flatMap((s) => Object.keys(s.nodes)))].sort();
  const row = (/** @type {any} */ name, /** @type {(s: any) => any} */ cell) => [name, ...of.map((s) => cell(s) ?? '')];
  const ms = (/** @type {number | undefined} */ t) => (t === undefined ? '' : span(t));
  return html`<${Rows} label="Start-up" head=${['', ...of.map((s) => s.stage.replace('_', ' '))]} right=${of.map((_, i) => i + 1)} rows=${[
    row('slowest', (s) => ms(s.ms)), row('median', (s) => ms(s.median_ms)), row('ratio', (s) => s.ratio === null ? '' : digits(s.ratio)),
    ...nodes.map((n) => row(html`<${Link} node=${n} />`, (s) => ms(s.nodes[n])))]} />`;
}

/** @param {any} j @returns {[string, any][]} */
function facts(j) {
  return [
    ['program', html`<code>${[j.program, ...j.arguments].join(' ')}</code>`],
    ['needs', j.needs || null],
    ['node', j.node ? html`<${Link} node=${j.node} />` : null],
    ['submitted', html`${when(j.submitted, now.value)}${j.by ? ` by ${j.by}` : ''}`],
    ['namespace', j.namespace],
    ['priority', String(j.priority)],
    ['attempt', `${j.attempt} of ${j.attempts}`],
  ];
}
