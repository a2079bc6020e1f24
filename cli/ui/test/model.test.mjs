// Deltas, events, held orders, windows of rows, streams, names that are found.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { explain, failure, words } from '../api.js';
import { applyDelta, freeze, mergeEvents, visible } from '../delta.js';
import { parser } from '../sse.js';
import { match, rank } from '../subsequence.js';
import { filled } from '../view/actorrow.js';
import { sorted } from '../view/order.js';
import { plainly } from '../view/eventline.js';
import { inOrder, wholes } from '../view/figures.js';
import { jobOf, nameOf, split } from '../view/part.js';
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

test('who waits in a handler is not at work, though busy', () => {
  assert.equal(split(0.7, 0.6), 'works 10 %, waits 60 %, idle 30 %');
  assert.equal(split(1, 1), 'works 0 %, waits 100 %, idle 0 %');
  assert.equal(split(0.2, 0.3), 'works 0 %, waits 30 %, idle 70 %');
});

test('a sentence does not repeat the subject that stands beside it', () => {
  const said = (subject, sentence) => plainly({ subject, sentence });
  assert.equal(said({ kind: 'job', id: 'j7', name: 'j7' }, 'job j7: submitted'), 'submitted');
  assert.equal(said({ kind: 'node', id: 'n1', name: 'n1' }, 'node n1 is seen'), 'is seen');
  assert.equal(said({ kind: 'node', id: 'n1', name: 'n1' }, 'n12 is seen'), 'n12 is seen');
  assert.equal(said({ kind: 'actor', id: 'c.2', name: 'train.Learner 2' }, 'train.Learner 2: out of memory'), 'out of memory');
  assert.equal(said({ kind: 'process', id: 'c', name: 'node n3 (pid 7)' }, 'node n3 is gone'), 'is gone');
  assert.equal(said({ kind: 'actor', id: 'c.2', name: 'a' }, 'a > b > a: deadlock'), 'a > b > a: deadlock');
  assert.equal(said(null, 'as it is'), 'as it is');
});

test('whole numbers have a place each, and what is judged by comes first', () => {
  assert.deepEqual(wholes([[1, 2, 9]]), [{ value: 1, n: 9 }]);
  assert.deepEqual(wholes([[0, 1, 4], [2, 3, 5]])?.map((b) => b.n), [4, 0, 5]);
  assert.equal(wholes([[0, 32, 4]]), null);
  assert.equal(wholes([[0, 1, 4], [900, 901, 5]]), null);
  assert.deepEqual(inOrder(['kl', 'rl.loss', 'accuracy', 'rl.reward', 'supervised_loss'].map((name) => ({ name }))).map((x) => x.name), ['rl.reward', 'rl.loss', 'accuracy', 'kl', 'supervised_loss']);
});

test('names and jobs as the daemon tags them', () => {
  assert.deepEqual([jobOf('team/j17.2').id, jobOf('j7').id], ['j17', 'j7']);
  assert.equal(nameOf({ id: 'c49a.7', name: null, type: 'rl.Rollout' }), 'rl.Rollout 7');
});

test('a refusal is told with the number of its request', async () => {
  const told = (body, headers = {}, status = 404) => failure(new Response(body, { status, headers }));
  const full = await told('{"kind":"too_many","why":"Too many look on."}', { 'x-request-id': 'r2', 'retry-after': '7' }, 429);
  assert.deepEqual(full, { kind: 'too_many', why: 'Too many look on.', hint: undefined, request: 'r2', status: 429, retry_s: 7 });
  assert.equal(explain(full), full);
  assert.equal(words({ ...full, hint: 'Close one.' }), 'Too many look on. Close one.');
  const bare = await told('', {}, 503);
  assert.deepEqual([bare.kind, bare.why, bare.request], ['unavailable', 'the daemon answered 503', undefined]);
  assert.equal((await told('null', {}, 500)).kind, 'internal');
  assert.match(words(new TypeError('network')), /does not answer.*odeon up/);
});

test('a mailbox says its bytes where there are any', () => {
  assert.equal(filled({ len: 12, max: 1024, bytes: 3482 }), '12 of 1,024, 3.40 KiB');
  assert.equal(filled({ len: 12, max: 1024, bytes: 0 }), '12 of 1,024');
});

test('a trajectory is as stale as the newest weights in use when it began', () => {
  const [a, b, c] = [[0, 1, 5], [10, 20, 7], [12, null, 6]];
  const then = newestThen([{ trajectories: [a, c] }, { trajectories: [b] }]);
  assert.deepEqual([a, b, c].map((t) => then.get(t) - t[2]), [0, 0, 1]);
});
