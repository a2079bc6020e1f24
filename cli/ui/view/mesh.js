// The ranks of a run on their mesh: who is where, how long each takes for what, and the means by dimension.
// @ts-check
import { html, useRef, useState } from '../vendor/preact.js';
import { count, plural, span } from '../format.js';
import { select } from '../route.js';
import { State } from './glyph.js';
import { Link, Section, Toggle, Wide } from './part.js';
/**
 * @typedef {{ compute: number, exchange: number, wait: number }} Seconds
 * @typedef {{ rank: number, coordinates: number[], state: string, actor: any, node: string, process: string, devices: string[], step: number | null, last: Seconds | null, memory: any, resident: any }} Rank
 * @typedef {{ name: string, size: number, means: (Seconds | null)[] }} Dim
 * @typedef {{ dims: Dim[], ranks: Rank[], median: Seconds | null, standbys: any[] }} Mesh
 */

/** The parts of a step, and what a rank does in them. */
const parts = { compute: 'computes', exchange: 'exchanges', wait: 'waits' };
/** From so many ranks on a cell has room for its number alone. */
const roomy = 64;
/** The most cells of a row where the last dimension is longer. */
const columnsMax = 32;

const ms = (/** @type {number} */ seconds) => span(seconds * 1000);

/** The shade of a number, by its distance from the median in parts of a step. @param {Seconds | null} of @param {Seconds | null} median @param {string} part */
export function far(of, median, part) {
  if (!of || !median) return '';
  const step = median.compute + median.exchange + median.wait;
  const by = step > 0 ? (of[part] - median[part]) / step : 0;
  if (by < -0.05) return 'below';
  return by < 0.05 ? '' : by < 0.15 ? 'near' : by < 0.4 ? 'far' : 'furthest';
}

/** The median of the means of a dimension: of two the smaller. @param {(Seconds | null)[]} means @returns {Seconds | null} */
export function middle(means) {
  const known = means.filter((m) => m !== null);
  if (!known.length) return null;
  const of = (/** @type {string} */ part) => known.map((m) => m[part]).sort((a, b) => a - b)[Math.floor((known.length - 1) / 2)];
  return { compute: of('compute'), exchange: of('exchange'), wait: of('wait') };
}

/** The same in words. @param {number} of @param {number} median */
function beside(of, median) {
  const by = median > 0 ? Math.round((of / median - 1) * 100) : 0;
  return by ? ` (${by > 0 ? '+' : '-'}${count(Math.abs(by))} %)` : '';
}

/**
 * Ranks as blocks of rows: the last dimension along a row, the one before down the rows, all others as blocks.
 * @param {{ name: string, size: number }[]} all @param {number} ranks
 */
export function blocks(all, ranks) {
  const dims = all.filter((d) => d.size > 1);
  const last = dims[dims.length - 1] ?? { name: '', size: 1 };
  const columns = Math.min(last.size, columnsMax);
  const before = last.size > columnsMax ? null : dims[dims.length - 2] ?? null;
  const rows = before ? before.size : Math.ceil(last.size / columns);
  const outer = dims.slice(0, before ? -2 : -1);
  const each = before ? columns * rows : last.size;
  return Array.from({ length: Math.ceil(ranks / each) }, (_, b) => ({
    title: placesOf(outer, b),
    columns: Array.from({ length: columns }, (_, i) => (last.size > columnsMax ? '' : `${last.name} ${i}`.trim())),
    rows: Array.from({ length: rows }, (_, r) => ({
      title: before ? `${before.name} ${r}` : '',
      ranks: Array.from({ length: columns }, (_, i) => b * each + r * columns + i).filter((n) => n < Math.min(ranks, (b + 1) * each)),
    })),
  }));
}

/** The places of a block along dimensions, the last first. @param {{ name: string, size: number }[]} dims @param {number} at */
function placesOf(dims, at) {
  const words = [];
  for (let i = dims.length - 1, rest = at; i >= 0; i -= 1) {
    words.unshift(`${dims[i].name} ${rest % dims[i].size}`);
    rest = Math.floor(rest / dims[i].size);
  }
  return words.join(', ');
}

/** @param {Rank} r @param {Dim[]} dims */
const at = (r, dims) => dims.map((d, i) => `${d.name} ${r.coordinates[i]}`).join(', ');

/** @param {Rank} r */
const home = (r) => [r.node, r.process, ...r.devices].filter(Boolean).join(' / ') || 'no process yet';

/** @param {Rank} r @param {Mesh} m */
function numbers(r, m) {
  const { last, step } = r;
  if (!last) return 'no step yet';
  const said = Object.entries(parts).map(([part, does]) => `${does} ${ms(last[part])}${beside(last[part], m.median?.[part] ?? 0)}`);
  return `step ${count(step ?? 0)}: ${said.join(', ')}`;
}

/** @param {{ of: Mesh }} props */
export function Mesh({ of }) {
  const [part, setPart] = useState('compute');
  const sizes = of.dims.map((d) => `${d.name} ${d.size}`).join(', ');
  const steps = of.ranks.map((r) => r.step ?? 0);
  const step = Math.max(0, ...steps);
  return html`<${Section} title="Mesh" note=${`${plural(of.ranks.length, 'rank')}: ${sizes}${step ? `; step ${count(step)}` : ''}`}>
    <p class="legend dim"><span class="choice" role="group" aria-label="Coloured by">${Object.keys(parts).map((p) => html`<${Toggle} key=${p} on=${p === part} onClick=${() => setPart(p)}>${p}<//>`)}</span>
      ${shades.map(([shade, words]) => html`<span key=${words}><span class="swatch shade ${shade}" /> ${words}</span>`)}</p>
    <${Grid} of=${of} part=${part} />
    ${of.standbys.map((s) => html`<p class="dim" key=${s.standby}>standby <${Link} to=${s.actor} word=${`${s.standby} on ${s.node}`} /></p>`)}
    <${Means} of=${of} part=${part} /><//>`;
}

const shades = [['below', 'below the median'], ['', 'within 5 % of a step'], ['near', '15 %'], ['far', '40 %'], ['furthest', 'more above it']];

/** @param {{ of: Mesh, part: string }} props */
function Grid({ of, part }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [active, setActive] = useState(0);
  const [over, setOver] = useState(/** @type {number | null} */ (null));
  const dense = of.ranks.length > roomy;
  const all = blocks(of.dims, of.ranks.length);
  const columns = all[0]?.columns.length ?? 1;
  const here = of.ranks[over ?? active] ?? of.ranks[0];
  const take = (/** @type {number} */ to) => {
    const rank = Math.max(0, Math.min(of.ranks.length - 1, to));
    setActive(rank);
    /** @type {HTMLElement | null | undefined} */ (box.current?.querySelector(`[data-rank="${rank}"]`))?.focus();
  };
  const key = (e) => {
    /** @type {Record<string, number>} */
    const moves = { ArrowRight: active + 1, ArrowLeft: active - 1, ArrowDown: active + columns, ArrowUp: active - columns, Home: 0, End: of.ranks.length - 1 };
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === 'Enter' && here.actor) select('actor', here.actor.id);
    else if (e.key in moves) take(moves[e.key]);
    else return;
    e.preventDefault();
    e.stopPropagation();
  };
  const cell = (/** @type {number} */ rank) => html`<${Cell} key=${rank} of=${of} rank=${of.ranks[rank]} part=${part} dense=${dense} active=${rank === active} take=${setActive} hover=${setOver} />`;
  return html`<div class="mesh ${dense ? 'is-dense' : ''}" role="grid" aria-label="Ranks" ref=${box} onKeyDown=${key} onMouseLeave=${() => setOver(null)}>
    ${all.map((b) => html`<${Block} key=${b.title} of=${b} dense=${dense} cell=${cell} />`)}</div>
    ${here ? html`<p class="told"><b>rank ${here.rank}</b> <span class="dim">${at(here, of.dims)}</span> <${State} of=${here.state} /> ${here.actor ? html`<${Link} to=${here.actor} word=${home(here)} />` : html`<span class="dim">${home(here)}</span>`} <span>${numbers(here, of)}</span></p>` : null}`;
}

/** @param {{ of: ReturnType<typeof blocks>[0], dense: boolean, cell: (rank: number) => any }} props */
function Block({ of, dense, cell }) {
  const heads = !dense && of.columns[0] !== '';
  const named = of.rows.some((r) => r.title);
  return html`<div class="block" role="rowgroup" aria-label=${of.title || 'all'}>
    ${of.title ? html`<div role="row"><span role="columnheader" class="dim name">${of.title}</span></div>` : null}
    ${heads ? html`<div role="row">${named ? html`<span role="columnheader" class="dim side"><span class="hidden">rows</span></span>` : null}${of.columns.map((c) => html`<span role="columnheader" class="dim top-of" key=${c}>${c}</span>`)}</div>` : null}
    ${of.rows.map((r, i) => html`<div role="row" key=${i}>${named ? html`<span role="rowheader" class="dim side">${r.title}</span>` : null}${r.ranks.map(cell)}</div>`)}</div>`;
}

/** @param {{ of: Mesh, rank: Rank, part: string, dense: boolean, active: boolean, take: (rank: number) => void, hover: (rank: number) => void }} props */
function Cell({ of, rank: r, part, dense, active, take, hover }) {
  const words = `${at(r, of.dims)}, ${numbers(r, of)}`;
  const open = () => {
    take(r.rank);
    if (r.actor) select('actor', r.actor.id);
  };
  return html`<div role="gridcell" class="rank shade ${far(r.last, of.median, part)} is-${r.state}" data-rank=${r.rank} tabindex=${active ? 0 : -1} aria-label=${dense ? `rank ${r.rank}, ${r.state}, ${home(r)}, ${words}` : undefined}
    onFocus=${() => take(r.rank)} onMouseEnter=${() => hover(r.rank)} onClick=${open}>
    ${dense ? html`<b>${r.rank}</b>` : html`<span class="first"><b>${r.rank}</b> <${State} of=${r.state} bare=${r.state === 'running'} /></span>
      <span class="dim home">${home(r)}</span>
      ${r.last ? html`<span class="num">${ms(r.last[part])} <span class="dim">of ${ms(r.last.compute + r.last.exchange + r.last.wait)}</span></span>` : html`<span class="dim">no step yet</span>`}<span class="hidden">${words}</span>`}</div>`;
}

/** For each dimension a row of means, so that a slow group stands out. @param {{ of: Mesh, part: string }} props */
function Means({ of, part }) {
  const dims = of.dims.filter((d) => d.size > 1);
  if (!dims.length) return null;
  const most = Math.max(...dims.map((d) => d.size));
  const cell = (/** @type {Dim} */ d, /** @type {Seconds | null} */ mean, /** @type {number} */ i) => {
    const others = of.ranks.length / d.size;
    const words = mean ? `${d.name} ${i}: ${Object.entries(parts).map(([p, does]) => `${does} ${ms(mean[p])}`).join(', ')}, the mean of ${plural(others, 'rank')}` : `${d.name} ${i}: no step yet`;
    return html`<td key=${i} class="shade ${far(mean, middle(d.means), part)}" title=${words}>${mean ? ms(mean[part]) : '-'}</td>`;
  };
  return html`<${Wide} label="Means by dimension"><table class="means" aria-label=${`Mean ${part} time by dimension`}>
    <thead><tr><th scope="col">mean ${part}</th>${Array.from({ length: most }, (_, i) => html`<th scope="col" key=${i}>${i}</th>`)}</tr></thead>
    <tbody>${dims.map((d) => html`<tr key=${d.name}><th scope="row">${d.name}</th>${d.means.map((mean, i) => cell(d, mean, i))}</tr>`)}</tbody></table><//>
    <p class="dim small">over the ranks at each place and their last 8 steps, beside the median of the dimension</p>`;
}
