// The timeline of an exported file: the finest part that covers a window, with the lanes that are open. Pure.
// @ts-check
import { selfTime } from '../timeline/waterfall.js';

/** @param {any[]} tiles the first is the whole @param {number} from @param {number} to @param {Set<string>} open */
export function laidOut(tiles, from, to, open) {
  const covers = tiles.filter((t) => t.from <= from && t.to >= to);
  const tile = covers.reduce((best, t) => (t.to - t.from < best.to - best.from ? t : best), covers[0] ?? tiles[0]);
  const asked = [...open].some(Boolean);
  const byId = new Map(tile.lanes.map((l) => [l.id, l]));
  const is = (/** @type {any} */ lane) => (asked ? open.has(lane.id) : lane.kind === 'node' || tile.lanes.length < 80);
  const seen = (/** @type {any} */ lane) => !lane.parent || (byId.has(lane.parent) && is(byId.get(lane.parent)) && seen(byId.get(lane.parent)));
  return { ...tile, lanes: tile.lanes.filter(seen).map((l) => ({ ...l, open: is(l) && l.children > 0 })) };
}

/** Sums by name and kind of what touches a window. @param {any[]} spans @param {number} from @param {number} to */
export function sums(spans, from, to) {
  const below = Map.groupBy(spans, (s) => s.parent);
  const rows = new Map();
  for (const s of spans.filter((x) => x.start <= to && (x.end ?? to) >= from)) {
    const key = `${s.name} ${s.kind}`;
    const row = rows.get(key) ?? { name: s.name, kind: s.kind, count: 0, total_ms: 0, self_ms: 0, failed: 0, all: [] };
    const took = (s.end ?? to) - s.start;
    row.count += 1;
    row.total_ms += took;
    row.self_ms += selfTime({ ...s, end: s.end ?? to }, below.get(s.id) ?? []);
    row.failed += s.ok ? 0 : 1;
    row.all.push(took);
    rows.set(key, row);
  }
  const at = (/** @type {number[]} */ of, /** @type {number} */ q) => of[Math.min(of.length - 1, Math.floor(of.length * q))];
  return [...rows.values()].map(({ all, ...row }) => {
    all.sort((/** @type {number} */ a, /** @type {number} */ b) => a - b);
    return { ...row, p50_ms: at(all, 0.5), p99_ms: at(all, 0.99) };
  });
}
