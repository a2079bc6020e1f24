// A trace as rows: who caused whom, how deep, how long by itself. Pure.
// @ts-check
/** @typedef {import('../types').Span} Span */

/**
 * Children under their parents in the order of their starts; a span whose parent was lost stands at the root.
 * @param {Span[]} spans @returns {{ span: Span, depth: number, self: number }[]}
 */
export function rows(spans) {
  const byId = new Map(spans.map((s) => [s.id, s]));
  /** @type {Map<string | null, Span[]>} */
  const under = new Map();
  for (const s of spans) {
    const parent = s.parent && byId.has(s.parent) && s.parent !== s.id ? s.parent : null;
    under.set(parent, [...(under.get(parent) ?? []), s]);
  }
  /** @type {{ span: Span, depth: number, self: number }[]} */
  const out = [];
  const seen = new Set();
  const walk = (/** @type {string | null} */ parent, /** @type {number} */ depth) => {
    for (const s of (under.get(parent) ?? []).sort((a, b) => a.start - b.start)) {
      if (seen.has(s.id)) continue;
      seen.add(s.id);
      out.push({ span: s, depth, self: selfTime(s, under.get(s.id) ?? []) });
      walk(s.id, depth + 1);
    }
  };
  walk(null, 0);
  return out;
}

/** What is left of a span after what its children cover of it. @param {Span} s @param {Span[]} children */
export function selfTime(s, children) {
  const end = s.end ?? s.start;
  const parts = children.map((c) => [Math.max(s.start, c.start), Math.min(end, c.end ?? end)]).filter(([a, b]) => b > a).sort((a, b) => a[0] - b[0]);
  let covered = 0;
  let until = s.start;
  for (const [a, b] of parts) {
    covered += Math.max(0, b - Math.max(a, until));
    until = Math.max(until, b);
  }
  return Math.max(0, end - s.start - covered);
}

/** Self time summed by name, the most first. @param {{ span: Span, self: number }[]} all */
export function flame(all) {
  /** @type {Map<string, { name: string, kind: string, self: number, count: number }>} */
  const sums = new Map();
  for (const { span: s, self } of all) {
    const key = `${s.name} ${s.kind}`;
    const known = sums.get(key) ?? { name: s.name, kind: s.kind, self: 0, count: 0 };
    sums.set(key, { ...known, self: known.self + self, count: known.count + 1 });
  }
  return [...sums.values()].sort((a, b) => b.self - a.self);
}
