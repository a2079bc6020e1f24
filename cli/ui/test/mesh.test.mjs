// Where ranks stand, how far they are from the median, and which have the same memory.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { alike, most, ranges } from '../view/memory.js';
import { course, range, shade } from '../view/machines.js';
import { blocks, far, middle } from '../view/mesh.js';

const dims = (sizes) => Object.entries(sizes).map(([name, size]) => ({ name, size }));
const all = (of) => of.flatMap((b) => b.rows.flatMap((r) => r.ranks));

test('the last dimension is a row, the one before goes down, the others are blocks', () => {
  const [first, second, ...more] = blocks(dims({ dp: 2, pp: 2, tp: 2 }), 8);
  assert.deepEqual(more, []);
  assert.deepEqual(first, { title: 'dp 0', columns: ['tp 0', 'tp 1'], rows: [{ title: 'pp 0', ranks: [0, 1] }, { title: 'pp 1', ranks: [2, 3] }] });
  assert.deepEqual([second.title, second.rows[1].ranks], ['dp 1', [6, 7]]);
});

test('dimensions of one place are left out, and a long one goes on in the next row', () => {
  assert.deepEqual(blocks(dims({ dp: 1 }), 1).map((b) => b.rows.map((r) => r.ranks)), [[[0]]]);
  const [alone] = blocks(dims({ dp: 3 }), 3);
  assert.deepEqual([alone.title, alone.columns, alone.rows], ['', ['dp 0', 'dp 1', 'dp 2'], [{ title: '', ranks: [0, 1, 2] }]]);
  assert.deepEqual(blocks(dims({ dp: 100 }), 100)[0].rows.map((r) => r.ranks.length), [32, 32, 32, 4]);
  assert.equal(blocks(dims({ dp: 2, ep: 3, pp: 2, tp: 2 }), 24)[4].title, 'dp 1, ep 1');
});

test('every rank has one cell, whatever the mesh', () => {
  for (const sizes of [{ dp: 1 }, { dp: 16, pp: 8, tp: 8 }, { dp: 2, fsdp: 3, ep: 2, pp: 1, cp: 2, tp: 4 }, { dp: 1, tp: 40 }, { dp: 3, tp: 33 }]) {
    const ranks = Object.values(sizes).reduce((a, b) => a * b, 1);
    assert.deepEqual(all(blocks(dims(sizes), ranks)), Array.from({ length: ranks }, (_, i) => i), JSON.stringify(sizes));
  }
});

test('a number counts by how much of a step it is away from the median', () => {
  const median = { compute: 0.6, exchange: 0.3, wait: 0.1 };
  const at = (part, by) => far({ ...median, [part]: median[part] + by }, median, part);
  assert.deepEqual([-0.2, -0.04, 0, 0.04, 0.1, 0.2, 0.5].map((by) => at('wait', by)), ['below', '', '', '', 'near', 'far', 'furthest']);
  assert.equal(far(null, median, 'compute'), '');
  assert.equal(far(median, null, 'compute'), '');
  assert.equal(middle([{ compute: 3, exchange: 1, wait: 0 }, null, { compute: 1, exchange: 2, wait: 0 }])?.compute, 1);
  assert.equal(middle([null]), null);
});

test('many ranks with the same memory share a row, which names them', () => {
  assert.equal(ranges([0, 1, 2, 5, 7, 8]), '0-2, 5, 7-8');
  assert.equal(ranges([0, 2, 4, 6, 8]), '0, 2, 4, 6, ...');
  const rank = (n) => ({ rank: n, memory: { parameters: n % 2 } });
  const few = Array.from({ length: 4 }, (_, n) => rank(n));
  const many = Array.from({ length: 64 }, (_, n) => rank(n));
  assert.equal(alike(few).length, 4);
  const measured = [3, 9, null].map((activations) => ({ rank: 0, memory: { parameters: 1, activations } }));
  assert.equal(most(measured).activations, 9);
  assert.equal(most([{ rank: 0, memory: null }]), null);
  assert.deepEqual(alike(many).map((g) => g.length), [32, 32]);
});

test('a machine is deeper the further it is from the median on either side, and courses of a metric share their range', () => {
  assert.deepEqual([0, 1.9, -2, 2.9, 3, -5.9, 6, null].map(shade), ['', '', 'near', 'near', 'far', 'far', 'furthest', '']);
  const machines = [[1, 3], [2, 5], null].map((points, i) => ({ node: `n${i}`, ranks: 1, cells: [points && { mean: 1, deviations: 0, points }] }));
  assert.deepEqual(range(machines, 0), [1, 5]);
  assert.deepEqual(range(machines, 1), [0, 0]);
  assert.equal(course([1, 3], [1, 5], 10, 10), 'M0.0 9.0L10.0 5.0');
  assert.equal(course([2, 2, 2], [2, 2], 10, 10), 'M0.0 5.0L5.0 5.0L10.0 5.0');
  assert.equal(course([2], [2, 2], 10, 10), '');
});
