// Numbers, bytes, durations and times, as they are shown.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { age, bytes, clockError, count, digits, left, measured, percent, plural, short, span, speed, value } from '../format.js';

const table = (f, rows) => rows.forEach(([input, expect]) => assert.equal(f(input), expect, `${f.name}(${input})`));

test('counts are grouped and short ones have three digits', () => {
  table(count, [[0, '0'], [1204, '1,204'], [1e6, '1,000,000']]);
  table(short, [[0, '0'], [7, '7'], [999, '999'], [9999, '9,999'], [12_345, '12.3k'], [3_400_000, '3.40M'], [0.123, '0.12']]);
  table(digits, [[0, '0'], [123.4, '123'], [12.34, '12.3'], [1.234, '1.23'], [0.013, '0.013'], [-0.0032, '-0.0032']]);
});

test('bytes are powers of 1024', () => table(bytes, [[0, '0 B'], [1023, '1,023 B'], [1024, '1.00 KiB'], [64 * 1024 ** 3, '64.0 GiB'], [1.5 * 1024 ** 4, '1.50 TiB']]));

test('durations name their two largest units', () => {
  table(span, [[0, '0 s'], [0.0425, '42.5 µs'], [12.5, '12.5 ms'], [999.9, '1.0 s'], [1200, '1.2 s'], [41_000, '41 s'], [125_000, '2 m 05 s'], [11_520_000, '3 h 12 m'], [360_000_000, '4 d 4 h'], [-1200, '-1.2 s']]);
  table(age, [[0, '0 s'], [999, '0 s'], [1000, '1 s'], [9999, '9 s'], [61_500, '1 m 01 s']]);
});

test('what is left and how fast are said in the unit that reads well', () => {
  table(left, [[100, '1 s'], [59_000, '59 s'], [61_000, '2 min'], [7_200_000, '2.0 h']]);
  table(speed, [[1.39, '1.39 GB/s'], [0.0091, '9.10 MB/s'], [0.00001, '10.0 kB/s'], [0, '0 GB/s']]);
});

test('what is not measured is a dash with its reason, and zero is a zero', () => {
  assert.deepEqual(measured(0, percent), { text: '0 %', why: null });
  assert.deepEqual(measured({ missing: 'no driver' }, percent), { text: '-', why: 'no driver' });
  assert.deepEqual(measured(null, percent), { text: '-', why: 'not measured' });
});

test('values carry the unit that the server names', () => {
  assert.equal(value(0.25, 'share'), '25 %');
  assert.equal(value(2048, 'bytes/s'), '2.00 KiB/s');
  assert.equal(value(1500, 'us'), '1.50 ms');
  assert.equal(value(12, 'nats'), '12 nats');
  assert.equal(plural(1, 'node'), '1 node');
  assert.equal(plural(2, 'node'), '2 nodes');
  assert.equal(clockError(40), '±40.0 µs');
  assert.equal(clockError(null), 'unknown');
});
