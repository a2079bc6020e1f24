// Deltas, events, held orders, windows of rows, streams, names that are found.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { applyDelta, freeze, mergeEvents, visible } from '../delta.js';
import { parser } from '../sse.js';
import { match, rank } from '../subsequence.js';
import { sorted } from '../view/order.js';
import { jobOf, nameOf } from '../view/part.js';
import { newestThen } from '../view/rollouts.js';
import { flatten } from '../view/tree.js';

test('a delta changes rows by replacing them, and removes', () => {
  const old = { id: 'a', rate: 1, state: 'idle' };
  const rows = applyDelta(new Map([['a', old], ['b', { id: 'b', rate: 2 }]]), { upsert: [{ id: 'a', rate: 5 }, { id: 'c', rate: 9 }], remove: ['b', 'never'] });
  assert.deepEqual([...rows.values()], [{ id: 'a', rate: 5, state: 'idle' }, { id: 'c', rate: 9 }]);
  assert.equal(old.rate, 1);
});

test('events come once each, in order, not more than are kept', () => {
  const e = (...seqs) => seqs.map((seq) => ({ seq }));
  assert.deepEqual(mergeEvents(e(1, 2), e(3), 10), e(1, 2, 3));
  assert.deepEqual(mergeEvents(e(3, 4), e(1, 3), 10), e(1, 3, 4));
  assert.deepEqual(mergeEvents(e(1, 2), e(3, 4), 3), e(2, 3, 4));
});

test('a held order keeps its rows in place, drops the gone, puts the new last', () => {
  assert.deepEqual(freeze(['a', 'b', 'c'], ['c', 'a', 'd', 'b']), { order: ['a', 'b', 'c', 'd'], moves: 4 });
  assert.deepEqual(freeze(['a', 'b', 'c'], ['a', 'c']), { order: ['a', 'c'], moves: 0 });
});

test('only rows in sight are drawn', () => {
  assert.deepEqual(visible(0, 240, 24, 10_000), { first: 0, last: 16 });
  assert.deepEqual(visible(2400, 240, 24, 10_000), { first: 94, last: 116 });
  assert.deepEqual(visible(239_760, 240, 24, 10_000), { first: 9984, last: 10_000 });
  assert.deepEqual(visible(5000, 240, 24, 0), { first: 0, last: 0 });
});

test('rows without a value come last either way, equal ones stay', () => {
  const rows = [{ k: 2, n: 'a' }, { k: null, n: 'b' }, { k: 1, n: 'c' }, { k: 2, n: 'd' }];
  assert.equal(sorted(rows, (r) => r.k, false).map((r) => r.n).join(''), 'cadb');
  assert.equal(sorted(rows, (r) => r.k, true).map((r) => r.n).join(''), 'adcb');
});

test('a stream is cut into events wherever its chunks end', () => {
  const text = ': hello\n\nid: e-1\nevent: snapshot\ndata: {"a":1}\n\nevent: delta\r\ndata: x\r\ndata: y\r\n\r\ndata: last\n\n';
  const expect = [{ type: 'snapshot', id: 'e-1', data: '{"a":1}' }, { type: 'delta', id: 'e-1', data: 'x\ny' }, { type: 'message', id: 'e-1', data: 'last' }];
  for (const size of [1, 2, 3, 7, 1000]) {
    const got = [];
    const feed = parser((e) => got.push(e));
    for (let i = 0; i < text.length; i += size) feed(text.slice(i, i + size));
    assert.deepEqual(got, expect, `chunks of ${size}`);
  }
});

test('letters in order find a name, whole words first', () => {
  assert.equal(match('xyz', 'trainer'), null);
  assert.deepEqual(match('rw', 'rollout/worker')?.at, [0, 8]);
  assert.deepEqual(rank('work', ['wo-r-k', 'rollout/worker', 'work'], (x) => x, 9), ['work', 'rollout/worker', 'wo-r-k']);
});

test('a tree stands under its roots, folded where asked, and circles are cut', () => {
  const rows = [['a', null], ['b2', 'a'], ['b10', 'a'], ['c', 'b2'], ['lost', 'gone'], ['p', 'q'], ['q', 'p']].map(([id, parent]) => ({ id, name: id, parent, type: 't' }));
  const all = flatten(rows, new Set());
  assert.deepEqual(all.rows.map((r) => `${all.level.get(r.id)}${r.id}`), ['0a', '1b2', '2c', '1b10', '0lost']);
  assert.deepEqual(flatten(rows, new Set(['a'])).rows.map((r) => r.id), ['a', 'lost']);
});

test('names and jobs as the daemon tags them', () => {
  assert.deepEqual([jobOf('team/j17.2').id, jobOf('j7').id], ['j17', 'j7']);
  assert.equal(nameOf({ id: 'c49a.7', name: null, type: 'rl.Rollout' }), 'rl.Rollout 7');
});

test('a trajectory is as stale as the newest weights in use when it began', () => {
  const [a, b, c] = [[0, 1, 5], [10, 20, 7], [12, null, 6]];
  const then = newestThen([{ trajectories: [a, c] }, { trajectories: [b] }]);
  assert.deepEqual([a, b, c].map((t) => then.get(t) - t[2]), [0, 0, 1]);
});
