// The filter language, against rows.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { assign, duration, matches, mentionsSystem, ofEvents, parse, split, toggle, withSystem } from '../filter.js';

const row = { id: 'a17', name: 'rollout/worker 17', type: 'algo::Rollout', node: 'n2', job: 'j7', state: 'failed', system: false, devices: ['n2/3'], mailbox: { len: 120, max: 256 }, rate: 11, restarts: 3, busy: 0.6, waiting: 0, failed: 4, current: { message: 'Collect', since: 1000 } };
const holds = (text) => {
  const { terms, error } = parse(text);
  assert.equal(error, null, text);
  return matches(terms, row, 31_000);
};

test('every word must hold', () => {
  for (const yes of ['', 'state:failed', 'type:rollout', 'node:n2', 'mailbox>100', 'age>10s', 'age<1m', 'busy>0.5', 'rate>10 restarts>0', '"worker 17"', 'a17', '-node:n1', 'name:worker', 'device:n2/3', '-system:yes', 'system:any', '-"other"']) assert.ok(holds(yes), yes);
  for (const no of ['state:idle', 'mailbox>120', 'age>1m', 'node:n2 state:idle', '-node:n2', 'nothing', 'system:yes', '-worker']) assert.ok(!holds(no), no);
});

test('an actor without a message has no age', () => assert.ok(!matches(parse('age>0s').terms, { ...row, current: null }, 9e9)));

test('what cannot be compared says so', () => {
  assert.match(parse('state>3').error ?? '', /colon/);
  assert.match(parse('mailbox>many').error ?? '', /number/);
  assert.match(parse('age>soon').error ?? '', /time/);
  assert.match(parse('state:nope').error ?? '', /no state is called nope: starting, idle/);
  assert.equal(parse('a::b http://x').error, null);
});

test('a word that none of the few is says which they are, each page its own', () => {
  assert.equal(parse('kind:foo', ofEvents).error, 'no kind is called foo: failure, restart, started, stopped, node, job, problem, device');
  assert.equal(parse('x -severity:bad', ofEvents).error, 'no severity is called bad: error, warning, info');
  assert.match(parse('kind:', ofEvents).error ?? '', /^kind: wants one: failure/);
  for (const fine of ['kind:failure -kind:Started severity:error', 'state:foo', 'subject:foo', 'kind']) assert.equal(parse(fine, ofEvents).error, null);
  assert.equal(parse('kind:foo').error, null);
});

test('system actors are asked for where the page shows them and the filter does not speak of them', () => {
  assert.deepEqual([withSystem('', true), withSystem('a', true), withSystem('a', false), withSystem('-system:yes', true)], ['system:any', 'a system:any', 'a', '-system:yes']);
});

test('durations, quotes, and words put in and taken out', () => {
  assert.deepEqual([duration('10s'), duration('250ms'), duration('2m'), duration('1h'), duration('3')], [10_000, 250, 120_000, 3_600_000, 3000]);
  assert.deepEqual(split('a "b c" -name:"d e" '), ['a', '"b c"', '-name:"d e"']);
  assert.equal(toggle('a kind:job', 'kind:job'), 'a');
  assert.equal(toggle('a', 'kind:job'), 'a kind:job');
  assert.equal(assign('node:n1 x', 'node', 'n2'), 'x node:n2');
  assert.equal(assign('x', 'type', 'two words'), 'x type:"two words"');
  assert.ok(mentionsSystem('-system:yes') && mentionsSystem('a system:any') && !mentionsSystem('systems'));
});
