// The columns of an actor, and what it does said in one phrase.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, count, digits, short } from '../format.js';
import { now, rates } from '../store.js';
import { State, worst } from './glyph.js';
import { Age, Bar, Link, Split, nameOf, toward } from './part.js';
import { Spark } from './spark.js';
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
export const said = (how) => words[how] ?? how;

/** How full a mailbox is; bytes are known of what came from other processes. @param {ActorRow['mailbox']} mailbox */
export const filled = ({ len, max, bytes: b }) => `${count(len)} of ${count(max)}${b ? `, ${bytes(b)}` : ''}`;

/** @param {{ row: ActorRow }} props */
export function Mailbox({ row }) {
  const { len, max } = row.mailbox;
  const share = max ? len / max : 0;
  const words = filled(row.mailbox);
  return html`<${Bar} share=${share} tone=${share > 0.8 ? 'failed' : 'accent'} label=${words} /><span class=${share > 0.8 ? 'num tone-failed' : 'num'} title=${words}>${short(len)}</span>`;
}

/** What flashes when it begins. */
const loud = ['failed', 'restarting', 'waiting', 'stopped'];
const tidy = (/** @type {string} */ t) => t.split('::').pop() || t;

/** @type {import('../types').Column[]} */
export const columns = [
  { id: 'name', title: 'Name', width: 'minmax(168px, 1.5fr)', sort: (r) => nameOf(r).toLowerCase(), cell: (r) => html`<span class="name" title=${`${nameOf(r)} (${r.id})`}>${nameOf(r)}</span>${r.incarnation > 1 ? html`<span class="dim" title="incarnation"> #${r.incarnation}</span>` : null}` },
  { id: 'state', title: 'State', width: '100px', sort: (r) => worst.indexOf(r.state), cell: (r) => html`<${State} of=${r.state} fresh=${loud.includes(r.state) && now.value - r.since < 1500} />` },
  { id: 'doing', title: 'Doing', width: 'minmax(210px, 2.2fr)', hint: 'the message in its handler, or whom it waits for', sort: (r) => (r.current ? r.current.since : null), cell: (r) => html`<${Doing} row=${r} />` },
  { id: 'mailbox', title: 'Mailbox', width: '104px', right: true, sort: (r) => r.mailbox.len, cell: (r) => html`<${Mailbox} row=${r} />` },
  { id: 'rate', title: 'Msgs/s', width: '124px', right: true, sort: (r) => r.rate, cell: (r) => html`<${Spark} points=${rates.get(r.id) ?? []} until=${now.value} /><span class="num">${short(Number(digits(r.rate)))}</span>` },
  { id: 'busy', title: 'Busy', width: '84px', sort: (r) => r.busy, hint: 'works, waits in a handler, is idle', cell: (r) => html`<${Split} busy=${r.busy} waiting=${r.waiting} />` },
  { id: 'restarts', title: 'Rst', width: '44px', right: true, hint: 'restarts', sort: (r) => r.restarts, cell: (r) => html`<span class=${r.restarts ? 'num tone-starting' : 'num dim'}>${count(r.restarts)}</span>` },
  { id: 'type', title: 'Type', width: 'minmax(96px, 1fr)', sort: (r) => r.type, cell: (r) => html`<span class="dim" title=${r.type}>${tidy(r.type)}</span>` },
  { id: 'node', title: 'Node', width: 'minmax(72px, 0.6fr)', sort: (r) => r.node, cell: (r) => html`<${Link} to=${{ kind: 'node', id: r.node, name: r.node }} />` },
  { id: 'device', title: 'GPU', width: '84px', sort: (r) => r.devices[0] ?? null, cell: (r) => (r.devices.length ? html`<a class="thing" href=${toward({ kind: 'device', id: r.devices[0], name: '' })}>${r.devices[0]}</a>${r.devices.length > 1 ? html`<span class="dim"> +${r.devices.length - 1}</span>` : null}` : html`<span class="missing" title="not on a device">-</span>`) },
];

/** @type {import('../types').Column[]} */
export const groupColumns = [
  { id: 'key', title: 'Group', width: 'minmax(180px, 2fr)', sort: (g) => g.key, cell: (g) => html`<span class="name">${g.key}</span>` },
  { id: 'count', title: 'Actors', width: '84px', right: true, sort: (g) => g.count, cell: (g) => html`<span class="num">${count(g.count)}</span>` },
  { id: 'worst', title: 'Worst', width: '110px', sort: (g) => worst.indexOf(g.worst), cell: (g) => html`<${State} of=${g.worst} />` },
  { id: 'sum', title: 'Mailbox sum', width: '104px', right: true, sort: (g) => g.mailbox.sum, cell: (g) => html`<span class="num">${short(g.mailbox.sum)}</span>` },
  { id: 'max', title: 'Deepest', width: '84px', right: true, sort: (g) => g.mailbox.max, cell: (g) => html`<span class="num">${short(g.mailbox.max)}</span>` },
  { id: 'rate', title: 'Msgs/s', width: '84px', right: true, sort: (g) => g.rate, cell: (g) => html`<span class="num">${short(Number(digits(g.rate)))}</span>` },
  { id: 'busy', title: 'Busy', width: '120px', right: true, hint: 'in handlers, at work or waiting', sort: (g) => g.busy, cell: (g) => html`<${Bar} share=${g.busy} tone="busy" /><span class="num">${Math.round(g.busy * 100)} %</span>` },
  { id: 'failed', title: 'Failed', width: '72px', right: true, sort: (g) => g.failed, cell: (g) => html`<span class=${g.failed ? 'num tone-failed' : 'num dim'}>${count(g.failed)}</span>` },
  { id: 'restarts', title: 'Restarts', width: '80px', right: true, sort: (g) => g.restarts, cell: (g) => html`<span class="num">${count(g.restarts)}</span>` },
];

/** @param {ActorRow} row */
export const rowTone = (row) => (row.state === 'failed' ? 'is-failed' : row.state === 'stopped' ? 'is-over' : '');

/** A short list of actors, for drawers. @param {{ rows: ActorRow[], label: string }} props */
export function Few({ rows, label }) {
  if (!rows?.length) return null;
  return html`<ul class="few" aria-label=${label}>${rows.map((r) => html`<li key=${r.id}><${State} of=${r.state} bare=${true} /> <${Link} to=${{ kind: 'actor', id: r.id, name: nameOf(r) }} />
    <span class="doing"><${Doing} row=${r} /></span></li>`)}</ul>`;
}

