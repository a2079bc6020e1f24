// How fine things are drawn: spans where they can be seen, columns of density where they cannot. Pure.
// @ts-check
import { digits, percent } from '../format.js';
/** @typedef {import('../types').Chunk} Chunk @typedef {import('../types').Lane} Lane */

/** Narrower than this, a span is a share of a column, in pixels. */
const narrow = 3;
/** The least that can be seen of one. */
const least = 1.5;

/**
 * Spans as marks in pixels. What is narrower than three pixels is merged within columns of its row, so there are never
 * more marks than pixels; a mark is as wide as the time that it stands for, and says which share of that was filled.
 * @param {Lane} lane @param {Chunk} chunk @param {number} from @param {number} scale pixels a millisecond @param {number} width @param {number} edge where what goes on ends
 */
export function marks(lane, chunk, from, scale, width, edge) {
  const wide = [];
  /** @type {Map<number, { x: number, w: number, row: number, share: number, kind: number, failed: boolean }>} */
  const columns = new Map();
  for (const s of lane.spans ?? []) {
    const x = (chunk.from + s[1] - from) * scale;
    const end = s[2] === null ? edge : chunk.from + s[2];
    const w = (end - chunk.from - s[1]) * scale;
    if (x > width || x + w < 0) continue;
    if (w >= narrow) {
      wide.push({ span: s, x, w });
      continue;
    }
    const key = Math.floor(x / narrow) * 16 + s[6];
    const known = columns.get(key);
    if (!known) columns.set(key, { x, w, row: s[6], share: w, kind: s[3], failed: !s[5] });
    else {
      const right = Math.max(known.x + known.w, x + w);
      known.x = Math.min(known.x, x);
      known.w = right - known.x;
      known.share += w;
      known.failed ||= !s[5];
    }
  }
  const seen = (/** @type {any} */ m) => ({ ...m, w: Math.max(least, m.w), share: Math.min(1, m.share / Math.max(least, m.w)) });
  return { wide, columns: [...columns.values()].map(seen) };
}

/** Buckets in pixels. @param {Lane} lane @param {Chunk} chunk @param {number} from @param {number} scale @param {number} width */
export function bars(lane, chunk, from, scale, width) {
  const out = [];
  const w = Math.max(1, chunk.bucket_ms * scale);
  const full = chunk.full?.[lane.kind] ?? 1;
  for (const [n, busy, failed] of lane.buckets ?? []) {
    const x = (chunk.from + n * chunk.bucket_ms - from) * scale;
    if (x < width && x + w > 0) out.push({ x, w, share: Math.min(1, busy / full), failed });
  }
  return out;
}

/**
 * What a full height stands for, the same in all lanes of a kind: one at work all the time or, where more are, the next
 * power of two, so that heights do not change with every bucket that comes.
 * @param {Lane[]} lanes @returns {Record<string, number>}
 */
export function fullOf(lanes) {
  /** @type {Record<string, number>} */
  const all = {};
  for (const { kind, buckets } of lanes) {
    for (const [, busy] of buckets ?? []) all[kind] = Math.max(all[kind] ?? 1, 2 ** Math.ceil(Math.log2(busy || 1)));
  }
  return all;
}

/** What a lane shows at a time, in words. @param {Lane} lane @param {Chunk} chunk @param {number} at */
export function density(lane, chunk, at) {
  const place = Math.floor((at - chunk.from) / chunk.bucket_ms);
  const busy = lane.buckets?.find((b) => b[0] === place)?.[1] ?? 0;
  const full = chunk.full?.[lane.kind] ?? 1;
  return full > 1 ? `${digits(busy)} at work at once; full height is ${full}` : `at work for ${percent(busy)} of the time`;
}
