// Where bytes went: who has which weights, and every copy with how fast it was against how fast it could be.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, clockMs, count, percent, span, speed } from '../format.js';
import { chosen, route, select, sortBy } from '../route.js';
import { now } from '../store.js';
import { useView } from '../stream.js';
import { Board, Speed } from '../view/board.js';
import { Bar as Toolbar } from '../view/filterbox.js';
import { State } from '../view/glyph.js';
import { Bar, Link, Section } from '../view/part.js';
import { Empty, View } from '../view/states.js';
import { Table, numbers } from '../view/table.js';

const number = (m) => (typeof m === 'number' ? m : null);
const signs = (c) => (!c.ok ? 'failed' : c.end === null ? 'busy' : 'succeeded');

/** Achieved against expected: under a half is slow. @param {{ of: any }} props */
function Pace({ of: c }) {
  const [got, could] = [number(c.gb_per_s), number(c.expected_gb_per_s)];
  if (got === null || could === null) return html`<${Speed} of=${c.gb_per_s} />`;
  const slow = got < could / 2;
  return html`<${Bar} share=${got / could} tone=${slow ? 'waiting' : 'accent'} label=${`${percent(got / could)} of ${speed(could)}`} /><span class=${slow ? 'num tone-waiting' : 'num'}>${speed(got)}<span class="dim"> of ${speed(could)}</span></span>`;
}

/** Expectations have room where there are any. @param {any[]} copies @returns {import('../types').Column[]} */
const columnsOf = (copies) => {
  const could = copies.some((c) => number(c.expected_gb_per_s) !== null);
  return [...columns, { id: 'pace', title: could ? 'Speed, expected' : 'Speed', width: could ? '212px' : '96px', right: true, hint: could ? 'achieved and expected' : undefined, sort: (c) => (could ? (number(c.gb_per_s) ?? 0) / (number(c.expected_gb_per_s) ?? 1e9) : number(c.gb_per_s)), cell: (c) => html`<${Pace} of=${c} />` }];
};

/** @type {import('../types').Column[]} */
const columns = [
  { id: 'start', title: 'Began', width: '112px', sort: (c) => c.start, cell: (c) => html`<span class="num dim">${clockMs(c.start)}</span>` },
  { id: 'state', title: 'State', width: '104px', sort: (c) => signs(c), cell: (c) => html`<${State} of=${signs(c)} word=${!c.ok ? 'Failed' : c.end === null ? percent(c.bytes ? c.done / c.bytes : 0) : 'Done'} />` },
  { id: 'what', title: 'What', width: 'minmax(170px, 1.6fr)', sort: (c) => c.what, cell: (c) => html`<span class="name" title=${c.error ?? c.what}>${c.what}</span>` },
  { id: 'from', title: 'From', width: 'minmax(136px, 1.2fr)', sort: (c) => c.from.name, cell: (c) => html`<${Link} to=${c.from} />` },
  { id: 'to', title: 'To', width: 'minmax(136px, 1.2fr)', sort: (c) => c.to.name, cell: (c) => html`<${Link} to=${c.to} />` },
  { id: 'route', title: 'Route', width: '112px', sort: (c) => c.route, cell: (c) => html`<span class="dim">${c.route}</span>` },
  numbers('bytes', 'Bytes', '84px', (c) => c.bytes, bytes),
  numbers('took', 'Took', '80px', (c) => (c.end ?? now.value) - c.start, span),
];

export function Transfers() {
  const is = useView({ view: 'transfers' });
  const { boards = [], copies = [] } = is.data ?? {};
  return html`<${Toolbar} title="Transfers" note=${is.data ? `${count(copies.length)} copies` : ''} />
    <${View} of=${is} isEmpty=${!boards.length && !copies.length} empty=${html`<${Empty} title="Nothing has been copied" why="Broadcasts of weights and copies between processes, nodes and devices appear here." run />`}>
      <div class="page flush">${boards.map((b) => html`<${Board} key=${b.id} of=${b} />`)}
        ${copies.length ? html`<${Section} title="Copies" note="the newest first">
          <${Table} fit=${30} label="Copies" columns=${columnsOf(copies)} rows=${copies} sort=${route.value.params.sort ?? '-start'} onSort=${sortBy}
            selected=${chosen('transfer')} onOpen=${(c) => select('transfer', c.id)} tone=${(c) => (c.ok ? '' : 'is-failed')} /><//>` : null}
      </div><//>`;
}
