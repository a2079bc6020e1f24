// The table of many rows: a grid that draws only what is seen, keeps its order while pointed at, and is walked with keys.
// @ts-check
import { html, useLayoutEffect, useRef, useState } from '../vendor/preact.js';
import { count, plural } from '../format.js';
import { rowHeight, useOrder, useWindow } from './order.js';
import { Shape } from './glyph.js';

/**
 * A column of numbers.
 * @param {string} id @param {string} title @param {string} width @param {(row: any) => number} of @param {(n: number) => string} [show] @param {(row: any) => string} [tone]
 * @returns {import('../types').Column}
 */
export const numbers = (id, title, width, of, show = count, tone) => ({ id, title, width, right: true, sort: of, cell: (r) => html`<span class="num ${tone?.(r) ?? ''}">${show(of(r))}</span>` });

/** Focuses the table that was drawn last. */
export const focus = { table: () => {} };

/**
 * @param {{ label: string, columns: import('../types').Column[], rows: any[], keyOf?: (row: any) => string, sort?: string,
 *   onSort?: (sort: string) => void, selected?: string | null, onOpen?: (row: any) => void, tone?: (row: any) => string,
 *   total?: number, fit?: number, tree?: { level: (row: any) => number, open: (row: any) => boolean | null, fold: (row: any, open: boolean) => void } }} props
 */
export function Table(props) {
  const { label, columns, rows, keyOf = (row) => row.id, sort = '', selected = null, total, fit, tree } = props;
  const [pointed, setPointed] = useState(false);
  const [focused, setFocused] = useState(false);
  const [, again] = useState(0);
  const { shown, moves, release } = useOrder(rows, keyOf, sort, columns, (pointed || focused) && !tree);
  const view = useWindow(shown.length);
  const roving = useRoving(props, shown, keyOf, view, focused);
  const cols = columns.map((c) => c.width).join(' ');
  const least = columns.reduce((n, c) => n + Number(/\d+/.exec(c.width)?.[0] ?? 0), 0);
  const catchUp = () => {
    release();
    again((n) => n + 1);
  };
  const table = html`<div class="table">
    <div role=${tree ? 'treegrid' : 'grid'} class="grid" aria-label=${label} aria-rowcount=${(total ?? shown.length) + 1} aria-colcount=${columns.length} style=${{ '--cols': cols, '--least': `${least}px` }}
      ref=${view.box} onKeyDown=${roving.onKeyDown}>
      <${Head} columns=${columns} sort=${sort} onSort=${props.onSort} />
      <div role="rowgroup" class="body" style=${{ height: `${shown.length * rowHeight}px` }} onPointerEnter=${() => setPointed(true)} onPointerLeave=${() => setPointed(false)}
        onFocusIn=${() => setFocused(true)} onFocusOut=${(e) => setFocused(e.currentTarget.contains(e.relatedTarget))}>
        ${roving.drawn(view).map((i) => html`<${Row} key=${keyOf(shown[i])} row=${shown[i]} at=${i} columns=${columns} tree=${tree}
          chosen=${keyOf(shown[i]) === selected} active=${i === roving.at} take=${roving.take} onOpen=${props.onOpen} tone=${props.tone?.(shown[i]) ?? ''} />`)}
      </div>
    </div>
    ${moves > 0 ? html`<button class="chip floating" onClick=${catchUp} title="Put the rows in order now">order paused - ${plural(moves, 'move')}</button>` : null}
  </div>`;
  return fit ? html`<div class="fit" style=${{ '--rows': String(Math.max(1, Math.min(fit, rows.length))) }}>${table}</div>` : table;
}

/** @param {{ columns: import('../types').Column[], sort: string, onSort?: (sort: string) => void }} props */
function Head({ columns, sort, onSort }) {
  const down = sort.startsWith('-');
  const by = sort.replace(/^-/, '');
  return html`<div role="rowgroup" class="head"><div role="row" class="row" aria-rowindex="1">
    ${columns.map((c) => {
      const here = by === c.id;
      const order = here ? (down ? 'descending' : 'ascending') : undefined;
      const next = here ? (down ? c.id : `-${c.id}`) : typeof c.sort === 'function' && c.right ? `-${c.id}` : c.id;
      return html`<div role="columnheader" class=${c.right ? 'cell right' : 'cell'} aria-sort=${order} key=${c.id} title=${c.hint}>
        ${c.sort && onSort ? html`<button onClick=${() => onSort(next)}>${c.title}${here ? html`<span class="sort ${down ? '' : 'up'}"><${Shape} of="down" size=${8} /></span>` : null}</button>` : html`<span>${c.title}</span>`}
      </div>`;
    })}</div></div>`;
}

/** @param {any} props */
function Row({ row, at, columns, tree, chosen, active, take, onOpen, tone }) {
  const open = tree ? tree.open(row) : null;
  const click = (e) => {
    take(at, false);
    if (e.target.closest('a, button') || String(getSelection())) return;
    onOpen?.(row);
  };
  return html`<div role="row" class="row ${tone} ${chosen ? 'chosen' : ''}" aria-rowindex=${at + 2} aria-selected=${chosen ? 'true' : 'false'}
    aria-level=${tree ? tree.level(row) + 1 : undefined} aria-expanded=${open === null ? undefined : String(open)} data-at=${at}
    tabindex=${active ? 0 : -1} style=${{ top: `${at * rowHeight}px` }} onClick=${click}>
    ${columns.map((/** @type {import('../types').Column} */ c, i) => html`<div role="gridcell" class=${c.right ? 'cell right' : 'cell'} key=${c.id}>
      ${i === 0 && tree ? html`<${Fold} row=${row} tree=${tree} open=${open} />` : null}${c.cell(row)}</div>`)}
  </div>`;
}

/** @param {any} props */
function Fold({ row, tree, open }) {
  const indent = html`<span class="indent" style=${{ width: `${tree.level(row) * 14}px` }} />`;
  if (open === null) return html`${indent}<span class="fold" />`;
  return html`${indent}<button class="fold" tabindex="-1" aria-label=${open ? 'Collapse' : 'Expand'} onClick=${() => tree.fold(row, !open)}>
    <${Shape} of=${open ? 'down' : 'right'} size=${8} /></button>`;
}

/**
 * One row of the table is reached with Tab; keys walk from it. It is drawn even when scrolled away, so focus is never lost.
 * @param {any} props @param {any[]} shown @param {(row: any) => string} keyOf @param {any} view @param {boolean} focused
 */
function useRoving(props, shown, keyOf, view, focused) {
  const [active, setActive] = useState(/** @type {string | null} */ (null));
  const wants = useRef(false);
  const wanted = active ?? props.selected;
  const found = wanted === null ? 0 : shown.findIndex((row) => keyOf(row) === wanted);
  const at = Math.max(0, found);
  const take = (/** @type {number} */ i, grab = true) => {
    if (!shown.length) return;
    const to = Math.max(0, Math.min(shown.length - 1, i));
    wants.current = grab;
    if (grab) reveal(view.box.current, to);
    setActive(keyOf(shown[to]));
  };
  useLayoutEffect(() => {
    focus.table = () => take(at);
    if (!wants.current) return;
    const el = view.box.current?.querySelector(`[data-at="${at}"]`);
    if (!el) return;
    wants.current = false;
    el.focus({ preventScroll: true });
  });
  const drawn = (/** @type {{ first: number, last: number }} */ { first, last }) => {
    const all = Array.from({ length: last - first }, (_, i) => first + i);
    return (focused || wants.current) && shown.length && (at < first || at >= last) ? [...all, at] : all;
  };
  return { at, take, drawn, onKeyDown: (e) => walk(e, at, take, view.page, shown, props) };
}

/** @param {KeyboardEvent} e @param {number} at @param {(i: number) => void} take @param {number} page @param {any[]} shown @param {any} props */
function walk(e, at, take, page, shown, props) {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  const inRow = /** @type {HTMLElement} */ (e.target).closest('[data-at]');
  if (!inRow) return;
  const fold = (/** @type {boolean} */ open) => {
    if (props.tree?.open(shown[at]) === !open) props.tree.fold(shown[at], open);
  };
  /** @type {Record<string, () => void>} */
  const moves = {
    ArrowDown: () => take(at + 1), j: () => take(at + 1), ArrowUp: () => take(at - 1), k: () => take(at - 1),
    PageDown: () => take(at + page), PageUp: () => take(at - page), Home: () => take(0), End: () => take(shown.length - 1),
    ArrowRight: () => fold(true), l: () => fold(true), ArrowLeft: () => fold(false), h: () => fold(false),
    Enter: () => {
      if (e.target === inRow) props.onOpen?.(shown[at]);
    },
  };
  const move = moves[e.key];
  if (!move || (e.key === 'Enter' && e.target !== inRow)) return;
  e.preventDefault();
  e.stopPropagation();
  move();
}

/** @param {HTMLElement | null} box @param {number} at */
function reveal(box, at) {
  if (!box) return;
  const top = at * rowHeight;
  const room = box.clientHeight - rowHeight;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + rowHeight > box.scrollTop + room) box.scrollTop = top + rowHeight - room;
}
