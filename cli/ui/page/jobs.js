// What was asked for, why it is pending, how it ended.
// @ts-check
import { html } from '../vendor/preact.js';
import { count, plural } from '../format.js';
import { chosen, patch, route, select, sortBy } from '../route.js';
import { about, now } from '../store.js';
import { useView } from '../stream.js';
import { Bar, Choice } from '../view/filterbox.js';
import { State } from '../view/glyph.js';
import { Phases, Refusal } from '../view/jobs.js';
import { Age, Link, Section, none } from '../view/part.js';
import { Empty, View } from '../view/states.js';
import { Table, numbers } from '../view/table.js';

const over = ['succeeded', 'failed', 'stopped'];
const order = ['placing', 'queued', 'starting', 'running', 'stopping', 'failed', 'stopped', 'succeeded'];

/** Why the job is not further, or how it ended. @param {{ of: any }} props */
function Why({ of: j }) {
  if (j.refusal) return html`<span class="tone-waiting" title=${j.refusal.sentence}>${j.refusal.sentence}</span>`;
  if (j.exit && j.state === 'failed') return html`<span class="tone-failed" title=${j.exit.sentence}>${j.exit.sentence}</span>`;
  return html`<span class="dim" title=${j.exit?.sentence}>${j.exit?.sentence || j.needs || '-'}</span>`;
}

/** @type {import('../types').Column[]} */
const columns = [
  { id: 'name', title: 'Job', width: 'minmax(150px, 1fr)', sort: (j) => j.name, cell: (j) => html`<span class="name">${j.name}</span> <span class="dim">${j.id}</span>` },
  { id: 'state', title: 'State', width: '108px', sort: (j) => order.indexOf(j.state), cell: (j) => html`<${State} of=${j.state} fresh=${now.value - j.since < 1500} />` },
  { id: 'since', title: 'For', width: '88px', right: true, sort: (j) => -j.since, cell: (j) => html`<${Age} since=${j.since} />` },
  { id: 'phases', title: 'Phases', width: '136px', cell: (j) => html`<${Phases} of=${j.phases} state=${j.state} thin=${true} />` },
  { id: 'why', title: 'Needs, refusal or end', width: 'minmax(240px, 3fr)', cell: (j) => html`<${Why} of=${j} />` },
  { id: 'node', title: 'Node', width: '64px', sort: (j) => j.node, cell: (j) => (j.node ? html`<${Link} node=${j.node} />` : none('not placed')) },
  numbers('actors', 'Actors', '68px', (j) => j.actors),
  { id: 'attempt', title: 'Attempt', width: '72px', right: true, sort: (j) => j.attempt, cell: (j) => html`<span class=${j.attempt > 1 ? 'num tone-waiting' : 'num dim'}>${j.attempt}/${j.attempts}</span>` },
  numbers('priority', 'Prio', '52px', (j) => j.priority, String, () => 'dim'),
  { id: 'by', title: 'By', width: '84px', sort: (j) => j.by, cell: (j) => html`<span class="dim">${j.by ?? '-'}</span>` },
];

export function Jobs() {
  const is = useView({ view: 'jobs' });
  const { params } = route.value;
  const show = params.g ?? '';
  const all = is.data?.jobs ?? [];
  const jobs = all.filter((j) => !show || (show === 'over') === over.includes(j.state));
  const pending = all.filter((j) => j.refusal);
  return html`<${Bar} title="Jobs" note=${is.data ? count(all.length) : ''}>
      <${Choice} label="Show" at=${show} of=${[['', 'all'], ['open', 'waiting and running'], ['over', 'over']]} set=${(v) => patch({ g: v })} /><//>
    <${View} of=${is} isEmpty=${!all.length} empty=${html`<${Empty} title="No job was submitted" why=${about.value?.faces?.jobs === false ? 'Jobs are what a cluster places and keeps; this is a run by itself.' : 'A job is a program that the cluster places and keeps.'} command=${about.value?.faces?.jobs === false ? undefined : 'odeon submit target/release/my_job -- --steps 100'} />`}>
      <div class="page flush">
        <${Table} fit=${24} label="Jobs" columns=${columns} rows=${jobs} sort=${params.sort ?? 'state'} onSort=${sortBy}
          selected=${chosen('job')} onOpen=${(j) => select('job', j.id)} tone=${(j) => (j.state === 'failed' ? 'is-failed' : over.includes(j.state) ? 'is-over' : '')} />
        ${pending.map((j) => html`<${Section} key=${j.id} title=${html`Why <${Link} to=${{ kind: 'job', id: j.id, name: j.name }} /> is pending`} note=${html`for <${Age} since=${j.since} />`}><${Refusal} of=${j.refusal} /><//>`)}
        ${pending.length ? html`<p class="dim">${plural(pending.length, 'job')} pending. A job is tried again whenever something becomes free.</p>` : null}
      </div><//>`;
}
