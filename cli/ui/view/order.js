// Which rows, in which order, and which of them the window shows.
// @ts-check
import { useEffect, useMemo, useRef, useState } from '../vendor/preact.js';
import { freeze, visible } from '../delta.js';

/** The height of a row in pixels. */
export const rowHeight = 24;

/**
 * Sorted copies; a leading minus is descending. Rows without a value come last either way.
 * @param {any[]} rows @param {(row: any) => any} by @param {boolean} down
 */
export function sorted(rows, by, down) {
  const side = down ? -1 : 1;
  const keyed = rows.map((row, i) => ({ row, i, v: by(row) }));
  const none = (v) => v === null || v === undefined;
  keyed.sort((a, b) => {
    if (none(a.v) || none(b.v)) return Number(none(a.v)) - Number(none(b.v)) || a.i - b.i;
    if (a.v < b.v) return -side;
    return a.v > b.v ? side : a.i - b.i;
  });
  return keyed.map((k) => k.row);
}

/**
 * The rows in order. While somebody points at the table the order is held; moves says how many rows would stand elsewhere.
 * @param {any[]} rows @param {(row: any) => string} keyOf @param {string} sort @param {import('../types').Column[]} columns @param {boolean} hold
 */
export function useOrder(rows, keyOf, sort, columns, hold) {
  const held = useRef({ sort: '', ids: /** @type {string[]} */ ([]) });
  const fresh = useMemo(() => {
    const by = columns.find((c) => c.id === sort.replace(/^-/, ''))?.sort;
    return by ? sorted(rows, by, sort.startsWith('-')) : rows;
  }, [rows, sort]);
  const ids = useMemo(() => fresh.map(keyOf), [fresh]);
  if (!hold || held.current.sort !== sort || !held.current.ids.length) {
    held.current = { sort, ids };
    return { shown: fresh, moves: 0, release: () => {} };
  }
  const { order, moves } = freeze(held.current.ids, ids);
  held.current.ids = order;
  const byId = new Map(fresh.map((row, i) => [ids[i], row]));
  const release = () => {
    held.current = { sort: '', ids: [] };
  };
  return { shown: order.map((id) => byId.get(id)), moves, release };
}

/** The scrolled window of a list. @param {number} total @param {number} [row] */
export function useWindow(total, row = rowHeight) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [at, setAt] = useState({ top: 0, height: 600 });
  useEffect(() => {
    const el = box.current;
    if (!el) return undefined;
    const read = () => setAt((old) => {
      const top = Math.floor(el.scrollTop / row) * row;
      const height = el.clientHeight;
      return old.top === top && old.height === height ? old : { top, height };
    });
    const seen = new ResizeObserver(read);
    seen.observe(el);
    el.addEventListener('scroll', read, { passive: true });
    return () => {
      seen.disconnect();
      el.removeEventListener('scroll', read);
    };
  }, [row]);
  return { box, ...visible(at.top, at.height, row, total), page: Math.max(1, Math.floor(at.height / row) - 2) };
}
