// Lanes laid out one under another: what is where, what is under the pointer. Pure.
// @ts-check
/** @typedef {import('../types').Lane} Lane @typedef {import('../types').Chunk} Chunk @typedef {import('../types').SpanTuple} SpanTuple */
/** @typedef {{ lane: Lane, top: number, height: number }} Placed */

export const rowStep = 16;
const laneLeast = 24;
const rowsMost = 6;
/** The row that says how many lanes are left out. */
export const restHeight = 24;

/**
 * Heights never shrink while a lane is known, so that lanes do not jump as spans come and go.
 * @param {Lane[]} lanes @param {Map<string, number>} rows the most rows seen of each lane; it is added to
 * @returns {{ placed: Placed[], height: number }}
 */
export function layout(lanes, rows) {
  let top = 0;
  const placed = lanes.map((lane) => {
    let most = rows.get(lane.id) ?? 1;
    for (const s of lane.spans ?? []) if (s[6] + 1 > most) most = s[6] + 1;
    most = Math.min(most, rowsMost);
    rows.set(lane.id, most);
    const height = Math.max(laneLeast, most * rowStep + 8);
    const at = { lane, top, height };
    top += height;
    return at;
  });
  return { placed, height: top };
}

/**
 * A span stays in the row where it was first drawn; a new one takes the row that the daemon says, or the next that is free.
 * @param {Lane[]} lanes their spans get their rows @param {Map<string, Map<string, number>>} kept rows of the spans drawn last, by lane
 * @returns {Map<string, Map<string, number>>} the rows now, of lanes that have several
 */
export function settle(lanes, kept) {
  const all = new Map();
  for (const lane of lanes) {
    const known = kept.get(lane.id);
    if (!lane.spans || !(known || lane.spans.some((s) => s[6]))) continue;
    const rows = new Map();
    /** @type {{ starts: number[], ends: number[] }[]} */
    const taken = Array.from({ length: rowsMost }, () => ({ starts: [], ends: [] }));
    const put = (/** @type {SpanTuple} */ s, /** @type {number} */ row) => {
      const { starts, ends } = taken[row];
      const at = after(starts, s[1]);
      starts.splice(at, 0, s[1]);
      ends.splice(at, 0, s[2] ?? Infinity);
      rows.set(s[0], s[6] = row);
    };
    const fresh = lane.spans.filter((s) => {
      const row = known?.get(s[0]);
      if (row !== undefined) put(s, row);
      return row === undefined;
    });
    for (const s of fresh) put(s, rowFor(taken, s));
    if (taken.slice(1).some((row) => row.starts.length)) all.set(lane.id, rows);
  }
  return all;
}

/** @param {{ starts: number[], ends: number[] }[]} taken @param {SpanTuple} s */
function rowFor(taken, s) {
  const free = ({ starts, ends }) => {
    const at = after(starts, s[1]);
    return !(ends[at - 1] > s[1]) && !(starts[at] < (s[2] ?? Infinity));
  };
  const first = Math.min(s[6], rowsMost - 1);
  const found = taken.slice(first).findIndex(free);
  return found < 0 ? rowsMost - 1 : first + found;
}

/** How many begin at a time or before. @param {number[]} starts in order @param {number} start */
function after(starts, start) {
  let [low, high] = [starts[starts.length - 1] <= start ? starts.length : 0, starts.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= start) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The lanes that a scrolled window shows. @param {Placed[]} placed @param {number} top @param {number} height */
export function inView(placed, top, height) {
  return placed.filter((p) => p.top + p.height > top && p.top < top + height);
}

/** @param {Placed[]} placed @param {number} y */
export const laneAt = (placed, y) => placed.find((p) => y >= p.top && y < p.top + p.height) ?? null;

/**
 * The span at a place; a little slack makes thin ones reachable.
 * @param {Placed} p @param {Chunk} chunk @param {number} t @param {number} y from the top of all lanes @param {number} slack in milliseconds @param {number} edge where what is going on ends
 * @returns {SpanTuple | null}
 */
export function spanAt(p, chunk, t, y, slack, edge) {
  const row = Math.min(rowsMost - 1, Math.floor((y - p.top - 4) / rowStep));
  /** @type {SpanTuple | null} */
  let best = null;
  let far = Infinity;
  for (const s of p.lane.spans ?? []) {
    if (Math.min(s[6], rowsMost - 1) !== row) continue;
    const start = chunk.from + s[1];
    const end = s[2] === null ? edge : chunk.from + s[2];
    const away = t < start ? start - t : t > end ? t - end : 0;
    if (away <= slack && away < far) {
      best = s;
      far = away;
    }
  }
  return best;
}

/** @param {Placed[]} placed @param {string} id */
export function find(placed, id) {
  for (const p of placed) {
    const span = p.lane.spans?.find((s) => s[0] === id);
    if (span) return { placed: p, span };
  }
  return null;
}

/** The next or previous span of the same lane. @param {Lane} lane @param {string} id @param {number} step @returns {SpanTuple | null} */
export function beside(lane, id, step) {
  const row = lane.spans?.find((s) => s[0] === id)?.[6] ?? 0;
  const all = (lane.spans ?? []).filter((s) => s[6] === row).sort((a, b) => a[1] - b[1]);
  const at = all.findIndex((s) => s[0] === id);
  return at < 0 ? all[0] ?? null : all[at + step] ?? null;
}

/** The lanes without those of the runtime itself and all below them. @param {Lane[]} lanes */
export function withoutSystem(lanes) {
  const gone = new Set();
  const kept = lanes.filter((lane) => {
    if (!lane.system && !(lane.parent && gone.has(lane.parent))) return true;
    gone.add(lane.id);
    return false;
  });
  const fewer = (/** @type {string} */ id) => lanes.filter((l) => l.parent === id && gone.has(l.id)).length;
  return kept.map((lane) => (lane.open && lane.children ? { ...lane, children: lane.children - fewer(lane.id) } : lane));
}

/**
 * What is open where nobody has said: nodes, then processes, while few lanes come of it.
 * @param {Lane[]} lanes @param {Set<string>} open @param {number} [most]
 */
export function openByItself(lanes, open, most = 40) {
  let shown = lanes.length;
  for (const lane of lanes) {
    if (open.has(lane.id) || !lane.children || lane.kind === 'actor' || shown + lane.children > most) continue;
    open.add(lane.id);
    shown += lane.children;
  }
  return open;
}
