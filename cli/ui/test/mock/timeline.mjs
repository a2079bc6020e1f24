// The timeline of a mock world: spans follow from lane and time alone, so any window can be asked for.

const kinds = ['ask', 'tell', 'handle', 'user', 'copy', 'collective'];
const names = ['Collect', 'Step', 'forward', 'backward', 'sample', 'weights', 'all-reduce', 'Publish', 'Score'];

const mix = (a, b) => {
  let h = Math.imul(a + 0x9e37, 0x85ebca6b) ^ Math.imul(b + 0x79b9, 0xc2b2ae35);
  h = Math.imul(h ^ (h >>> 15), 0x2c1b3c6d);
  return ((h ^ (h >>> 13)) >>> 0) / 4294967296;
};

/** Lanes of a world: nodes, their processes, their actors; the index seeds what is on them. */
export function lanesOf(world) {
  const lanes = [];
  for (let n = 1; n <= world.nodeCount; n += 1) {
    lanes.push({ id: `n:n${n}`, parent: null, depth: 0, kind: 'node', name: `n${n}`, subject: { kind: 'node', id: `n${n}`, name: `n${n}` }, system: false, seed: -1 });
    lanes.push({ id: `p:p${n}`, parent: `n:n${n}`, depth: 1, kind: 'process', name: `worker p${n}`, subject: { kind: 'process', id: `p${n}`, name: `p${n}` }, system: false, seed: -1 });
    const here = world.actors.filter((a) => a.process === `p${n}`).slice(0, world.lanesPerNode ?? 14);
    for (const a of here) lanes.push({ id: `a:${a.id}`, parent: `p:p${n}`, depth: 2, kind: 'actor', name: a.name ?? a.type, subject: { kind: 'actor', id: a.id, name: a.name ?? a.type }, system: a.system, seed: Number(a.id.slice(1)) });
    for (let g = 0; g < Math.min(2, world.gpus); g += 1) lanes.push({ id: `g:n${n}/${g}`, parent: `n:n${n}`, depth: 1, kind: 'device', name: `gpu n${n}/${g}`, subject: { kind: 'device', id: `n${n}/${g}`, name: `n${n}/${g}` }, system: false, seed: 5000 + n * 8 + g });
  }
  return lanes;
}

/** @param {any} world @param {number} seed */
const period = (world, seed) => (world.spanPeriod ?? 900) * (0.7 + mix(seed, 1));

/** Spans of one lane that touch a window. */
export function spansOf(world, seed, from, to, at, limit = 4000) {
  const p = period(world, seed);
  const out = [];
  for (let k = Math.floor(from / p) - 1; k <= to / p && out.length < limit; k += 1) {
    const start = k * p + mix(seed, k) * p * 0.2;
    const took = p * (0.15 + 0.6 * mix(seed, k + 1e6));
    const end = start + took;
    if (start > at || end < from || start > to) continue;
    const ok = mix(seed, k + 7) > 0.012 ? 1 : 0;
    const kind = seed >= 5000 ? 4 + (k % 2 ? 1 : 0) : 2;
    out.push({ id: `s${seed}.${k}`, start, end: end > at ? null : end, kind, name: seed >= 5000 ? 5 + (k & 1) : (seed + k) % 2 ? 0 : 1, ok, row: 0 });
    if (seed < 5000 && took > 20) {
      const cut = start + took * 0.45;
      out.push({ id: `s${seed}.${k}.1`, start: start + took * 0.05, end: cut > at ? null : cut, kind: 3, name: 2, ok: 1, row: 1 });
      if (cut < at) out.push({ id: `s${seed}.${k}.2`, start: cut + took * 0.03, end: start + took * 0.9 > at ? null : start + took * 0.9, kind: k % 3 ? 3 : 4, name: k % 3 ? 3 : 5, ok: 1, row: 1 });
    }
  }
  return out;
}

function bucketsOf(world, seed, from, to, width, at) {
  const n = Math.ceil((to - from) / width);
  const busy = new Float64Array(n);
  const failed = new Uint32Array(n);
  const p = period(world, seed);
  const many = (to - from) / p;
  if (many > 6000 && !world.forgets) return Array.from({ length: n }, (_, i) => [i, from + i * width > at ? 0 : 0.3 + 0.3 * mix(seed, i), mix(seed, i) > 0.997 ? 1 : 0]).filter((b) => b[1] > 0);
  for (const s of kept(world, spansOf(world, seed, from, to, at, 20_000), at)) {
    if (s.row) continue;
    const end = s.end ?? at;
    for (let b = Math.max(0, Math.floor((s.start - from) / width)); b < n && from + b * width < end; b += 1) busy[b] += Math.min(end, from + (b + 1) * width) - Math.max(s.start, from + b * width);
    const b = Math.floor((s.start - from) / width);
    if (!s.ok && b >= 0 && b < n) failed[b] += 1;
  }
  return [...busy].map((v, i) => [i, Math.min(1, v / width), failed[i]]).filter((b) => b[1] > 0 || b[2] > 0);
}

/** The answer of the timeline route. */
export function timelineAt(world, query, at) {
  const from = Number(query.from);
  const to = Number(query.to);
  const px = Number(query.px) || 1000;
  const open = new Set((query.open ?? '').split(',').map((s) => s.trim()));
  const all = lanesOf(world);
  const bucket_ms = ((to - from) / px) * 3;
  const wanted = query.filter?.replaceAll('"', '').toLowerCase();
  const shown = all.filter((l) => (wanted ? l.kind === 'actor' && (l.name.toLowerCase().includes(wanted) || l.subject.id === wanted) : visible(l, all, open)));
  const lanes = shown.map((l) => {
    const seeds = l.seed >= 0 ? [l.seed] : all.filter((x) => x.seed >= 0 && under(x, l.id, all)).map((x) => x.seed).slice(0, 4);
    const many = ((to - from) / period(world, l.seed)) * 3;
    const spans = l.seed >= 0 && many < px * 2 ? kept(world, spansOf(world, l.seed, from, to, at), at).map((s) => [s.id, s.start - from, s.end === null ? null : s.end - from, s.kind, s.name, s.ok, s.row]) : null;
    const buckets = spans ? null : together(seeds.map((s) => bucketsOf(world, s, from, to, bucket_ms, at)));
    const hole = Math.floor(at / 60_000) * 60_000 + 5000;
    const gaps = l.seed === 4 && hole < to && hole + 1500 > from && hole + 1500 < at ? [[hole - from, hole + 1500 - from, 1312]] : [];
    const { seed: _, ...rest } = l;
    return { ...rest, open: open.has(l.id), children: all.filter((x) => x.parent === l.id).length, spans, buckets, gaps };
  });
  const opened = all.filter((l) => l.kind === 'process' && open.has(l.id) && visible(l, all, open));
  const lanes_left_out = world.name === 'big' ? opened.reduce((n, l) => n + world.actors.filter((a) => `p:${a.process}` === l.id).length - all.filter((x) => x.parent === l.id).length, 0) : 0;
  const drawn = lanes.reduce((n, l) => n + (l.spans?.length ?? 0), 0);
  return { data: { from, to, bucket_ms, names, kinds, lanes, lanes_left_out }, shown: drawn, total: Math.round(drawn + lanes.reduce((n, l) => n + (l.buckets?.length ?? 0), 0) * 4) };
}

/** Without what is forgotten. */
const kept = (world, spans, at) => (world.forgets ? spans.filter((s) => (s.end ?? at) >= at - world.forgets) : spans);

function together(all) {
  const sum = new Map();
  for (const list of all) for (const [b, v, f] of list) sum.set(b, [(sum.get(b)?.[0] ?? 0) + v, (sum.get(b)?.[1] ?? 0) + f]);
  return [...sum].map(([b, [v, f]]) => [b, v, f]).sort((a, b) => a[0] - b[0]);
}

const under = (lane, id, all) => lane.parent !== null && (lane.parent === id || under(all.find((x) => x.id === lane.parent), id, all));
const visible = (lane, all, open) => lane.parent === null || (open.has(lane.parent) && visible(all.find((x) => x.id === lane.parent), all, open));

/** One span in words. */
export function brief(world, id, at) {
  const [seed, k, part] = id.slice(1).split('.').map(Number);
  const p = period(world, seed);
  const s = spansOf(world, seed, k * p, k * p + p * 0.9, at).find((x) => x.id === id) ?? spansOf(world, seed, (k - 1) * p, (k + 2) * p, at).find((x) => x.id === id);
  if (!s) return null;
  const actor = world.actors[seed] ?? world.actors[0];
  return { id, trace: `t${k}`, parent: part ? `s${seed}.${k}` : causeOf(world, seed, k), kind: kinds[s.kind], name: names[s.name], actor: { kind: 'actor', id: actor.id, name: actor.name ?? actor.type }, start: s.start, end: s.end, queued_ms: mix(seed, k + 3) * 4, ok: s.ok === 1 };
}

const causeOf = (world, seed, k) => (seed === 0 || seed >= 5000 ? null : `s0.${Math.floor((k * period(world, seed)) / period(world, 0))}`);

/** As a failure is told: its chain, one a line, some of them long. */
const why = ['OutOfMemory: asked 12.0 GiB, free 3.1 GiB', `while it copied ${'layers/attention/query,'.repeat(12)}`, ...Array.from({ length: 30 }, (_, i) => `  at frame ${i} of the handler`)].join('\n');

/** The drawer of a span. */
export function spanDetail(world, id, at) {
  const span = brief(world, id, at);
  if (!span) return null;
  const [seed, k, part] = id.slice(1).split('.').map(Number);
  const effects = part ? [] : [1, 2].map((n) => brief(world, `s${seed}.${k}.${n}`, at)).filter(Boolean);
  if (seed === 0) for (const other of [4, 5, 6, 7, 8]) {
    const there = brief(world, `s${other}.${Math.ceil((k * period(world, 0)) / period(world, other))}`, at);
    if (there) effects.push(there);
  }
  return { span: { ...span, error: span.ok ? null : why, node: world.actors[seed]?.node ?? 'n1', process: 'p1', caller: seed ? { kind: 'actor', id: 'a0', name: 'trainer' } : null, attributes: { tokens: '4,096', batch: '32' } }, cause: span.parent ? brief(world, span.parent, at) : null, effects };
}

/** A whole trace: the root, what it asked, what they did. */
export function traceDetail(world, trace, at) {
  const k = Number(trace.slice(1));
  const spans = [];
  const add = (id) => {
    const s = brief(world, id, at);
    if (s && spans.length < 60) spans.push({ ...s, trace });
  };
  add(`s0.${k}`);
  for (const part of [1, 2]) add(`s0.${k}.${part}`);
  for (const seed of [4, 5, 6, 7, 8, 9]) {
    const there = Math.ceil((k * period(world, 0)) / period(world, seed));
    add(`s${seed}.${there}`);
    const last = spans[spans.length - 1];
    if (last?.id === `s${seed}.${there}`) last.parent = `s0.${k}`;
    for (const part of [1, 2]) add(`s${seed}.${there}.${part}`);
  }
  const late = spans.filter((s) => s.parent === `s0.${k}` && s.end).sort((a, b) => b.end - a.end)[0];
  return spans.length ? { trace, spans, critical: [`s0.${k}`, late?.id, late && `${late.id}.2`].filter(Boolean), lost: 3 } : null;
}

/** Spans in a window as text, and sums by name. */
export function spansIn(world, query, at) {
  const from = Number(query.from);
  const to = Number(query.to);
  const wanted = query.lane ?? query.lanes;
  const lanes = lanesOf(world).filter((l) => l.seed >= 0 && (!wanted || wanted.split(',').some((w) => l.id === w || under(l, w, lanesOf(world)))));
  return lanes.slice(0, 200).flatMap((l) => kept(world, spansOf(world, l.seed, from, to, at, 400), at).map((s) => ({ ...s, lane: l })));
}

/** @returns {any} */
export function aggregate(world, query, at) {
  const all = new Map();
  for (const s of spansIn(world, query, at)) {
    const key = `${names[s.name]} ${kinds[s.kind]}`;
    const row = all.get(key) ?? { name: names[s.name], kind: kinds[s.kind], took: [], failed: 0 };
    row.took.push((s.end ?? at) - s.start);
    row.failed += s.ok ? 0 : 1;
    all.set(key, row);
  }
  return { rows: [...all.values()].map(({ took, ...r }) => {
    took.sort((a, b) => a - b);
    const total = took.reduce((a, b) => a + b, 0);
    return { ...r, count: took.length, total_ms: total, self_ms: total * 0.4, p50_ms: took[took.length >> 1], p99_ms: took[Math.floor(took.length * 0.99)] };
  }).sort((a, b) => b.total_ms - a.total_ms) };
}
