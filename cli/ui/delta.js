// Snapshots and deltas applied to what is known.
// @ts-check

/**
 * Rows are replaced, never changed in place, so that what shows them sees by identity what is new.
 * @template {{ id: string }} T
 * @param {Map<string, T>} rows
 * @param {{ upsert?: (Partial<T> & { id: string })[], remove?: string[] }} delta
 */
export function applyDelta(rows, delta) {
  for (const id of delta.remove ?? []) rows.delete(id);
  for (const part of delta.upsert ?? []) {
    const old = rows.get(part.id);
    rows.set(part.id, old ? { ...old, ...part } : /** @type {T} */ (part));
  }
  return rows;
}

/**
 * Events by number, each once, the newest last, no more than `most`.
 * @template {{ seq: number }} E
 * @param {E[]} known @param {E[]} fresh @param {number} most
 */
export function mergeEvents(known, fresh, most) {
  if (fresh.length === 0) return known;
  const last = known.length ? known[known.length - 1].seq : -Infinity;
  if (fresh[0].seq > last) return [...known, ...fresh].slice(-most);
  const all = new Map([...known, ...fresh].map((e) => [e.seq, e]));
  return [...all.values()].sort((a, b) => a.seq - b.seq).slice(-most);
}

/**
 * The order held while somebody points at it: what is gone goes, what is new comes last.
 * @param {string[]} held @param {string[]} fresh
 * @returns {{ order: string[], moves: number }}
 */
export function freeze(held, fresh) {
  const here = new Set(fresh);
  const order = held.filter((id) => here.has(id));
  const known = new Set(order);
  for (const id of fresh) if (!known.has(id)) order.push(id);
  let moves = 0;
  for (let i = 0; i < order.length; i += 1) if (order[i] !== fresh[i]) moves += 1;
  return { order, moves };
}

/**
 * The rows that a scrolled window shows, with a margin.
 * @param {number} top @param {number} height @param {number} row @param {number} total
 */
export function visible(top, height, row, total, margin = 6) {
  const first = Math.max(0, Math.min(total, Math.floor(top / row) - margin));
  const last = Math.min(total, Math.ceil((top + height) / row) + margin);
  return { first, last: Math.max(first, last) };
}
