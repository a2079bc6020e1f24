// Addresses there and back, and the sentence of who waits for whom.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { href, parse, selected } from '../route.js';
import { sentence } from '../waits.js';

const text = (parts) => parts.map((p) => (typeof p === 'string' ? p : p.name)).join('');

test('an address says the whole view and comes back as it was', () => {
  for (const params of [{}, { f: 'state:failed "two words" mailbox>100', sel: 'actor:a-17' }, { sel: 'device:n1/0' }, { f: '<img src=x> & = # % ü', sort: '-rate' }, { from: '1795387565504.125', open: 'n:n1,p:p1' }]) {
    assert.deepEqual(parse(href('actors', params)), { page: 'actors', params });
  }
  assert.equal(href('actors', { f: '', sel: null }), '#/actors');
  assert.deepEqual(parse('#/nowhere?x=1'), { page: 'now', params: { x: '1' }, unknown: 'nowhere' });
  assert.deepEqual(parse(''), { page: 'now', params: {} });
});

test('an id may hold colons and slashes', () => {
  assert.deepEqual(selected(parse('#/actors?sel=device:n1/0')), { kind: 'device', id: 'n1/0' });
  assert.deepEqual(selected(parse('#/actors?sel=span:a:b')), { kind: 'span', id: 'a:b' });
  assert.equal(selected(parse('#/actors?sel=')), null);
});

const actor = (name) => ({ kind: 'actor', id: name, name });

test('the chain of waits is one sentence', () => {
  const chain = [{ subject: actor('pool'), how: 'ask', message: 'Collect', since: 9000 }, { subject: actor('worker'), how: 'room', message: 'Collect', since: 10_000 }];
  assert.equal(text(sentence(actor('trainer'), chain, false, 50_000)), 'trainer asks pool for Collect (41 s), which wants room in the mailbox of worker for Collect (40 s).');
  assert.equal(text(sentence(actor('a'), [{ subject: actor('b'), how: 'ask', message: 'X', since: 0 }, { subject: actor('a'), how: 'ask', message: 'Y', since: 0 }], true, 5000, true)), 'a asks b for X (5 s), which asks a for Y (5 s): they wait for each other and none can go on.');
  assert.match(text(sentence(actor('a'), chain, true, 50_000)), /there it comes back to where it was\.$/);
  assert.deepEqual(sentence(actor('a'), [], false, 0), []);
});
