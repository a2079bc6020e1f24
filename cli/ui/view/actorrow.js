// The columns of an actor, and what it does said in one phrase.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, count, digits, short } from '../format.js';
import { narrow } from '../prefs.js';
import { href } from '../route.js';
import { now, rates } from '../store.js';
import { State, worst } from './glyph.js';
import { Age, Bar, Job, Link, Section, Split, nameOf, none, toward } from './part.js';
import { Spark } from './spark.js';
import { numbers } from './table.js';
/** @typedef {import('../types').ActorRow} ActorRow */

/** What the actor does just now. @param {{ row: ActorRow }} props */
export function Doing({ row }) {
  if (row.ended) return html`<span class=${row.state === 'failed' ? 'tone-failed' : 'dim'} title=${row.ended.sentence}>${row.ended.sentence}</span>`;
  if (row.waits_on) {
    const w = row.waits_on;
    return html`<span><span class="since"><${Age} since=${w.since} /></span><span class="tone-waiting">${said(w.how)}</span> <${Link} to=${{ kind: w.how === 'place' ? 'node' : 'actor', id: w.id, name: w.name }} /> <span class="dim">${w.message}</span></span>`;
  }
  if (row.current) return html`<span><span class="since"><${Age} since=${row.current.since} /></span>${row.current.message}</span>`;
  return html`<span class="dim"><span class="since">-</span></span>`;
}

const words = { ask: 'asks', room: 'wants room at', place: 'waits for a place at' };
/** @param {string} how */
const said = (how) => words[how] ?? how;

/** How full a mailbox is; bytes are known of what came from other processes. @param {ActorRow['mailbox']} mailbox */
export const filled = ({ len, max, bytes: b }) => `${count(len)} of ${count(max)}${b ? `, ${bytes(b)}` : ''}`;

/** @param {{ row: ActorRow }} props */
function Mailbox({ row }) {
  const { len, max } = row.mailbox;
  const share = max ? len / max : 0;
  const words = filled(row.mailbox);
  return html`<${Bar} share=${share} tone=${share > 0.8 ? 'failed' : 'accent'} label=${words} /><span class=${share > 0.8 ? 'num tone-failed' : 'num'} title=${words}>${short(len)}</span>`;
}

/** What flashes when it begins. */
const loud = ['failed', 'restarting', 'waiting', 'stopped'];
const tidy = (/** @type {string} */ t) => t.split('::').pop() || t;

/** @type {import('../types').Column[]} */
const columns = [
  { id: 'name', title: 'Name', width: 'minmax(168px, 1.5fr)', sort: (r) => nameOf(r).toLowerCase(), cell: (r) => html`<span class="name" title=${`${nameOf(r)} (${r.id})`}>${nameOf(r)}</span>${r.name === null ? html`<span class="dim apart" title="its process">${r.process}</span>` : null}${r.incarnation > 1 ? html`<span class="dim" title="incarnation"> #${r.incarnation}</span>` : null}` },
  { id: 'state', title: 'State', width: '100px', sort: (r) => worst.indexOf(r.state), cell: (r) => html`<${State} of=${r.state} fresh=${loud.includes(r.state) && now.value - r.since < 1500} />` },
  { id: 'doing', title: 'Doing', width: 'minmax(210px, 2.2fr)', hint: 'the message in its handler, or whom it waits for', sort: (r) => (r.current ? r.current.since : null), cell: (r) => html`<${Doing} row=${r} />` },
  { id: 'mailbox', title: 'Mailbox', width: '104px', right: true, sort: (r) => r.mailbox.len, cell: (r) => html`<${Mailbox} row=${r} />` },
  { id: 'rate', title: 'Msgs/s', width: '124px', right: true, sort: (r) => r.rate, cell: (r) => html`<${Spark} points=${rates.get(r.id) ?? []} until=${now.value} /><span class="num">${short(Number(digits(r.rate)))}</span>` },
  { id: 'busy', title: 'Busy', width: '84px', sort: (r) => r.busy, hint: 'works, waits in a handler, is idle', cell: (r) => html`<${Split} busy=${r.busy} waiting=${r.waiting} />` },
  { ...numbers('restarts', 'Rst', '44px', (r) => r.restarts, count, (r) => (r.restarts ? 'tone-starting' : 'dim')), hint: 'restarts' },
  { id: 'type', title: 'Type', width: 'minmax(96px, 1fr)', sort: (r) => r.type, cell: (r) => html`<span class="dim" title=${r.type}>${tidy(r.type)}</span>` },
  { id: 'node', title: 'Node', width: 'minmax(72px, 0.6fr)', sort: (r) => r.node, cell: (r) => html`<${Link} node=${r.node} />` },
  { id: 'device', title: 'GPU', width: '84px', sort: (r) => r.devices[0] ?? null, cell: (r) => (r.devices.length ? html`<a class="thing" href=${toward({ kind: 'device', id: r.devices[0], name: '' })}>${r.devices[0]}</a>${r.devices.length > 1 ? html`<span class="dim"> +${r.devices.length - 1}</span>` : null}` : none('not on a device')) },
];

/** @type {import('../types').Column} */
const job = { id: 'job', title: 'Job', width: 'minmax(84px, 0.6fr)', sort: (r) => r.job, cell: (r) => html`<${Job} of=${r.job} />` };

/** The job stands there where several have actors, and there is room. @param {ActorRow[]} rows */
export function columnsFor(rows) {
  const several = rows.some((r) => r.job !== rows[0].job) && !narrow();
  return several ? [columns[0], job, ...columns.slice(1)] : columns;
}

/** @type {import('../types').Column[]} */
export const groupColumns = [
  { id: 'key', title: 'Group', width: 'minmax(180px, 2fr)', sort: (g) => g.key, cell: (g) => html`<span class="name">${g.key}</span>` },
  numbers('count', 'Actors', '84px', (g) => g.count),
  { id: 'worst', title: 'Worst', width: '110px', sort: (g) => worst.indexOf(g.worst), cell: (g) => html`<${State} of=${g.worst} />` },
  numbers('sum', 'Mailbox sum', '104px', (g) => g.mailbox.sum, short),
  numbers('max', 'Deepest', '84px', (g) => g.mailbox.max, short),
  numbers('rate', 'Msgs/s', '84px', (g) => g.rate, (n) => short(Number(digits(n)))),
  { id: 'busy', title: 'Busy', width: '120px', right: true, hint: 'in handlers, at work or waiting', sort: (g) => g.busy, cell: (g) => html`<${Bar} share=${g.busy} tone="busy" /><span class="num">${Math.round(g.busy * 100)} %</span>` },
  numbers('failed', 'Failed', '72px', (g) => g.failed, count, (g) => (g.failed ? 'tone-failed' : 'dim')),
  numbers('restarts', 'Restarts', '80px', (g) => g.restarts),
];

/** @param {ActorRow} row */
export const rowTone = (row) => (row.state === 'failed' ? 'is-failed' : row.state === 'stopped' ? 'is-over' : '');

/** Some actors of a thing, and the way to all of them. @param {{ rows: ActorRow[] | undefined, all: number, f: string, label: string }} props */
export function Actors({ rows, all, f, label }) {
  if (!rows?.length) return null;
  return html`<${Section} title="Actors" note=${all > rows.length ? html`<a href=${href('actors', { f })}>all ${count(all)}</a>` : count(rows.length)}><${Few} rows=${rows} label=${label} /><//>`;
}

/** @param {{ rows: ActorRow[], label: string }} props */
export function Few({ rows, label }) {
  return html`<ul class="few" aria-label=${label}>${rows.map((r) => html`<li key=${r.id}><${State} of=${r.state} bare=${true} /> <${Link} to=${{ kind: 'actor', id: r.id, name: nameOf(r) }} />
    <span class="doing"><${Doing} row=${r} /></span></li>`)}</ul>`;
}

