// Windows, lanes, levels of detail, waterfalls.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { beside, layout, openByItself, settle, spanAt, withoutSystem } from '../timeline/lanes.js';
import { bars, density, fullOf, marks } from '../timeline/lod.js';
import { rows, selfTime } from '../timeline/waterfall.js';
import { fit, keptSince, pan, serves, ticks, zoom } from '../timeline/window.js';
import { layout as tree } from '../view/board.js';

const lane = (over) => ({ id: 'l', parent: null, depth: 0, kind: 'actor', name: 'l', subject: null, system: false, open: false, children: 0, spans: null, buckets: null, gaps: [], ...over });
const chunk = { from: 1000, to: 2000, bucket_ms: 10, names: [], kinds: [], lanes: [] };

test('a zoom holds the time under the pointer, a move holds the length', () => {
  const w = zoom({ from: 100, to: 200 }, 0.5, 0.25);
  assert.deepEqual(w, { from: 112.5, to: 162.5 });
  assert.deepEqual(pan({ from: 100, to: 200 }, -0.2), { from: 80, to: 180 });
  assert.ok(zoom({ from: 0, to: 0.02 }, 0.1).to >= 0.02 / 2);
  assert.ok(fit(10, 20).from < 10 && fit(10, 20).to > 20);
});

test('the ruler has round steps and few lines', () => {
  for (const size of [0.5, 30, 900, 30_000, 86_400_000]) {
    const { at, step } = ticks({ from: 1_795_387_565_504, to: 1_795_387_565_504 + size }, 1000);
    assert.ok(at.length >= 2 && at.length <= 12, `${size}: ${at.length}`);
    assert.ok(Math.abs(at[0] / step - Math.round(at[0] / step)) < 1e-3);
  }
});

test('what was fetched serves while it covers the window as finely', () => {
  const has = { from: 0, to: 300, px: 3000 };
  assert.ok(serves(has, { from: 50, to: 150 }, 1000));
  assert.ok(!serves(has, { from: 250, to: 350 }, 1000));
  assert.ok(!serves(has, { from: 50, to: 80 }, 1000));
  assert.ok(!serves(null, { from: 0, to: 1 }, 10));
});

test('lanes stand one under another and never shrink', () => {
  const seen = new Map();
  const spans = [['s', 0, 10, 0, 0, 1, 2]];
  assert.deepEqual(layout([lane({ spans }), lane({ id: 'm' })], seen).placed.map((p) => [p.top, p.height]), [[0, 56], [56, 24]]);
  assert.equal(layout([lane({ spans: [] })], seen).height, 56);
});

test('a span stays in its row while others come and go', () => {
  const at = (kept, ...spans) => {
    const all = spans.map(([id, from, to, row]) => [id, from, to, 0, 0, 1, row]);
    const rows = settle([lane({ spans: all })], kept);
    return [rows, all.map((s) => `${s[0]}${s[6]}`).join(' ')];
  };
  // As the daemon says, where nothing was drawn before.
  let [kept, said] = at(new Map(), ['a', 0, 100, 0], ['b', 10, 90, 1], ['c', 95, 200, 1]);
  assert.equal(said, 'a0 b1 c1');
  // The daemon would move c up when a has left the window.
  [kept, said] = at(kept, ['b', 10, 90, 0], ['c', 95, 200, 0], ['d', 150, null, 1]);
  assert.equal(said, 'b1 c1 d2');
  [kept, said] = at(kept, ['c', 95, 200, 0], ['d', 150, 260, 0], ['e', 210, 220, 0], ['f', 230, 300, 1]);
  assert.equal(said, 'c1 d2 e0 f1');
  // One that comes late goes to the next row that is free where it was.
  [kept, said] = at(kept, ['late', 140, 160, 1], ['f', 230, 300, 1]);
  assert.equal(said, 'late1 f1');
  [, said] = at(new Map(), ...Array.from({ length: 9 }, (_, i) => [`${i}`, i, 100, i]));
  assert.equal(said, '00 11 22 33 44 55 65 75 85');
});

test('rows of many spans are settled soon', () => {
  const many = (from) => Array.from({ length: 2000 }, (_, i) => [`s${from + i}`, (from + i) * 2, (from + i) * 2 + 3, 0, 0, 1, i % 2]);
  const lanes = (from) => Array.from({ length: 40 }, (_, i) => lane({ id: `l${i}`, spans: many(from) }));
  const kept = settle(lanes(0), new Map());
  const began = performance.now();
  settle(lanes(5), kept);
  assert.ok(performance.now() - began < 400, `${performance.now() - began} ms`);
});

test('the span under the pointer is the one of its row, thin ones with slack', () => {
  const at = { lane: lane({ spans: [['a', 0, 100, 0, 0, 1, 0], ['b', 10, 20, 0, 0, 1, 1], ['c', 150, null, 0, 0, 1, 0]] }), top: 0, height: 40 };
  assert.equal(spanAt(at, chunk, 1050, 8, 5, 2000)?.[0], 'a');
  assert.equal(spanAt(at, chunk, 1022, 24, 5, 2000)?.[0], 'b');
  assert.equal(spanAt(at, chunk, 1900, 8, 5, 2000)?.[0], 'c');
  assert.equal(spanAt(at, chunk, 1130, 8, 5, 2000), null);
  assert.equal(beside(at.lane, 'a', 1)?.[0], 'c');
});

test('there are never more marks than columns of three pixels', () => {
  const spans = Array.from({ length: 20_000 }, (_, i) => [`s${i}`, i * 0.05, i * 0.05 + 0.04, 0, 0, i === 7 ? 0 : 1, 0]);
  const { wide, columns } = marks(lane({ spans }), chunk, 1000, 1, 1000, 2000);
  assert.equal(wide.length, 0);
  assert.ok(columns.length <= 334, String(columns.length));
  assert.ok(columns[0].failed && Math.abs(columns[10].share - 0.8) < 0.05);
});

test('a span that is alone is as wide as its time, and can be seen', () => {
  const at = (...spans) => marks(lane({ spans: spans.map(([from, to], i) => [`s${i}`, from, to, 0, 0, 1, 0]) }), chunk, 1000, 1, 1000, 2000).columns;
  assert.deepEqual(at([500.5, 500.625]).map((m) => [m.x, m.w, Math.round(m.share * 100)]), [[500.5, 1.5, 8]]);
  assert.deepEqual(at([500.5, 503]).map((m) => [m.x, m.w, m.share]), [[500.5, 2.5, 1]]);
  // Two within one column of three pixels: from the begin of the first to the end of the second, half filled.
  assert.deepEqual(at([501, 501.5], [502.5, 503]).map((m) => [m.x, m.w, m.share]), [[501, 2, 0.5]]);
  assert.equal(at([500, 500.1], [501, 501.1]).length, 2);
});

test('heights of lanes of a kind can be compared, and say how many are at work', () => {
  const [few, many] = [lane({ kind: 'process', buckets: [[0, 1, 0]] }), lane({ kind: 'process', buckets: [[0, 0.5, 0], [1, 6.3, 2]] })];
  const actor = lane({ buckets: [[0, 1, 0], [4, 0.02, 0]] });
  const full = fullOf([few, many, actor]);
  assert.deepEqual(full, { process: 8, actor: 1 });
  const share = (of) => bars(of, { ...chunk, full }, 1000, 1, 1000).map((b) => b.share);
  assert.deepEqual([share(few), share(actor)], [[1 / 8], [1, 0.02]]);
  assert.equal(density(many, { ...chunk, full }, 1012), '6.30 at work at once; full height is 8');
  assert.equal(density(actor, { ...chunk, full }, 1045), 'at work for 2 % of the time');
  assert.equal(density(actor, { ...chunk, full }, 1025), 'at work for 0 % of the time');
});

test('what is forgotten is said where the window reaches back to it', () => {
  const kept_from = new Date(2030, 0, 2, 13, 20, 4).getTime();
  const to = kept_from + 60_000;
  assert.equal(keptSince({ to, kept_from, forgotten: 1_234_567 }, kept_from - 1), 'spans are kept since 13:20:04, 1,234,567 older ones are forgotten');
  assert.equal(keptSince({ to, kept_from }, kept_from - 1), 'spans are kept since 13:20:04');
  assert.match(keptSince({ to: to + 86_400_000, kept_from }, 0), /since 2030-01-02 13:20:04$/);
  for (const chunk_ of [null, { to }, { to, kept_from }]) assert.equal(keptSince(chunk_, kept_from), '');
});

test('buckets land where their time is', () => {
  assert.deepEqual(bars(lane({ buckets: [[0, 0.5, 0], [99, 1, 2], [200, 1, 0]] }), chunk, 1000, 1, 1000), [{ x: 0, w: 10, share: 0.5, failed: 0 }, { x: 990, w: 10, share: 1, failed: 2 }]);
});

test('lanes open by themselves while they are few', () => {
  const open = openByItself([lane({ id: 'n1', kind: 'node', children: 3 }), lane({ id: 'n2', kind: 'node', children: 90 }), lane({ id: 'a', children: 5 })], new Set(), 20);
  assert.deepEqual([...open], ['n1']);
});

test("the runtime's own lanes go with all below them", () => {
  const all = [lane({ id: 'n', kind: 'node', open: true, children: 2 }), lane({ id: 'p', parent: 'n', open: true, children: 2 }), lane({ id: 'a', parent: 'p' }), lane({ id: 's', parent: 'p', system: true }), lane({ id: 'd', parent: 'n', system: true, open: true, children: 1 }), lane({ id: 'x', parent: 'd' })];
  assert.deepEqual(withoutSystem(all).map((l) => `${l.id}${l.children}`), ['n1', 'p1', 'a0']);
});

const span = (id, parent, start, end) => ({ id, parent, start, end, name: id, kind: 'ask' });

test('a waterfall stands in the order of causes, and self time leaves children out once', () => {
  const all = rows([span('c', 'a', 5, 9), span('a', null, 0, 10), span('b', 'a', 1, 6), span('lost', 'gone', 3, 4)]);
  assert.deepEqual(all.map((r) => `${r.depth}${r.span.id}${r.self}`), ['0a2', '1b5', '1c4', '0lost1']);
  assert.equal(selfTime(span('x', null, 0, 10), [span('y', 'x', 8, 14)]), 8);
});

test('a broadcast is laid out from its source', () => {
  const { places, lanes } = tree({ edges: [{ from: -1, to: 0 }, { from: 0, to: 1 }, { from: 0, to: 2 }, { from: 2, to: 0 }], rows: [{}, {}, {}] });
  assert.equal(lanes, 2);
  assert.deepEqual([places.get(-1)?.depth, places.get(0)?.depth, places.get(1)?.depth, places.get(2)?.lane], [0, 1, 2, 1]);
});
