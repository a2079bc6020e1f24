// How fine things are drawn: spans where they can be seen, columns of density where they cannot. Pure.
// @ts-check
/** @typedef {import('../types').Chunk} Chunk @typedef {import('../types').Lane} Lane */

/** Narrower than this, a span is a share of a column, in pixels. */
export const narrow = 3;

/**
 * Spans as marks in pixels. What is narrower than three pixels is merged into columns of its row,
 * so there are never more marks than pixels.
 * @param {Lane} lane @param {Chunk} chunk @param {number} from @param {number} scale pixels a millisecond @param {number} width @param {number} edge where what goes on ends
 */
export function marks(lane, chunk, from, scale, width, edge) {
  const wide = [];
  /** @type {Map<number, { x: number, row: number, share: number, kind: number, failed: boolean }>} */
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
    const column = Math.floor(x / narrow);
    const key = column * 8 + s[6];
    const known = columns.get(key);
    if (!known) columns.set(key, { x: column * narrow, row: s[6], share: w / narrow, kind: s[3], failed: !s[5] });
    else {
      known.share += w / narrow;
      known.failed ||= !s[5];
    }
  }
  return { wide, columns: [...columns.values()] };
}

/** Buckets in pixels. @param {Lane} lane @param {Chunk} chunk @param {number} from @param {number} scale @param {number} width */
export function bars(lane, chunk, from, scale, width) {
  const out = [];
  const w = Math.max(1, chunk.bucket_ms * scale);
  for (const [n, share, failed] of lane.buckets ?? []) {
    const x = (chunk.from + n * chunk.bucket_ms - from) * scale;
    if (x < width && x + w > 0) out.push({ x, w, share, failed });
  }
  return out;
}
