// Actors of a mock world: a trainer, a relay, rollouts under pools, and the system's own.
import { chance, series, wave } from './chance.mjs';

const messages = { Rollout: ['Collect', 'SetWeights'], Pool: ['Collect', 'Return'], Trainer: ['Step', 'Publish', 'Checkpoint'], Relay: ['Piece', 'Fetch'], Judge: ['Score'], Store: ['Put', 'Take'], Registry: ['Resolve'], Worker: ['Run'] };
const day = 86_400_000;
const mailbox = (len, max) => ({ len, max, bytes: len * 290 });

function actor(i, over, at) {
  return {
    id: `a${i}`, name: null, type: 'odeon_algorithms::Rollout', job: 'j7', node: 'n1', process: 'p1', devices: [], parent: null, system: false, state: 'idle', since: at - 9000,
    mailbox: mailbox(0, 256), received: 0, handled: 0, failed: 0, restarts: 0, incarnation: 1, rate: 0, busy: 0, waiting: 0, current: null, waits_on: null, ended: null, ...over,
  };
}

/** @param {{ nodes: number, rollouts: number, seed: number, at: number, places: number }} shape `places` is how many jobs have an actor each that nobody named */
export function makeActors({ nodes, rollouts, seed, at, places }) {
  const { between, below, next } = chance(seed);
  const all = [actor(0, { name: 'trainer', type: 'odeon_algorithms::Trainer', devices: ['n1/0', 'n1/1'], state: 'busy', rate: 4.2, busy: 0.91, received: 41_204, handled: 41_201, current: { message: 'Step', since: at - 2300 }, incarnation: 2, restarts: 1 }, at)];
  const add = (over) => all.push(actor(all.length, over, at));
  add({ name: 'relay', type: 'odeon_algorithms::Relay', parent: 'a0', rate: 210, busy: 0.31, received: 812_003, handled: 812_003 });
  add({ name: 'store', type: 'odeon_data::Store', parent: 'a0', rate: 1240, busy: 0.44, mailbox: mailbox(31, 1024), received: 9_411_220, handled: 9_411_180 });
  for (let n = 1; n <= nodes; n += 1) add({ name: `rollout/pool-n${n}`, type: 'odeon_algorithms::Pool', node: `n${n}`, process: `p${n}`, parent: 'a0', rate: between(20, 60), busy: 0.2, received: 100_000, handled: 99_000 });
  for (let i = 0; i < rollouts; i += 1) {
    const n = 1 + (i % nodes);
    const received = 1000 + below(90_000);
    add({ name: `rollout/worker-${i}`, node: `n${n}`, process: `p${n}`, parent: `a${2 + n}`, devices: i % 40 < 32 ? [`n${n}/${i % 8}`] : [], rate: between(1, 80), busy: between(0.1, 0.9), waiting: between(0, 0.1), mailbox: mailbox(below(next() < 0.02 ? 240 : 12), 256), received, handled: received - below(10), since: at - below(day), state: next() < 0.6 ? 'busy' : 'idle', current: next() < 0.5 ? { message: 'Collect', since: at - below(3000) } : null });
  }
  for (let n = 1; n <= nodes; n += 1) for (const t of ['Registry', 'Worker']) add({ name: null, type: `odeon::system::${t}`, node: `n${n}`, process: `p${n}`, system: true, job: null, rate: between(0, 5) });
  for (let n = 1; n <= places; n += 1) add({ id: `970990e${n}.1`, type: 'job.Place', job: `default/j${n}.1`, node: `n${1 + (n % nodes)}`, process: `970990e${n}` });
  for (const a of all) if (a.state === 'busy' && !a.current) a.state = 'idle';
  for (const a of all) if (a.state === 'idle' && a.current) a.state = 'busy';
  return all;
}

/** Changes so many of them a little; says which. */
export function stir(all, many, random, at) {
  const changed = new Map();
  for (let i = 0; i < many; i += 1) {
    const a = all[random.below(all.length)];
    if (['failed', 'stopped', 'waiting'].includes(a.state)) continue;
    const n = random.below(9);
    Object.assign(a, { received: a.received + n, handled: a.handled + n, rate: Math.max(0, a.rate + random.between(-6, 6)), busy: Math.min(0.98, Math.max(0.02, a.busy + random.between(-0.08, 0.08))), mailbox: mailbox(Math.max(0, Math.min(a.mailbox.max, a.mailbox.len + random.below(7) - 3)), a.mailbox.max) });
    const state = random.next() < 0.6 ? 'busy' : 'idle';
    if (state !== a.state) Object.assign(a, { state, since: at, current: state === 'busy' ? { message: messages[shortType(a)]?.[0] ?? 'Run', since: at } : null });
    changed.set(a.id, { id: a.id, received: a.received, handled: a.handled, rate: a.rate, busy: a.busy, mailbox: a.mailbox, state: a.state, since: a.since, current: a.current });
  }
  return changed;
}

const shortType = (a) => a.type.split('::').pop();
const subject = (a) => ({ kind: 'actor', id: a.id, name: a.name ?? `${shortType(a)} ${a.id}` });

/** The drawer of an actor. */
export function actorDetail(all, id, at, spans) {
  const row = all.find((a) => a.id === id);
  if (!row) return null;
  const byId = new Map(all.map((a) => [a.id, a]));
  const lineage = [];
  for (let a = row; a; a = byId.get(a.parent)) lineage.unshift(subject(a));
  const under = all.filter((a) => a.parent === id);
  const by_state = {};
  for (const a of under) by_state[a.state] = (by_state[a.state] ?? 0) + 1;
  const { chain, circle } = chainOf(row, byId);
  const q = (p50) => ({ p50, p99: p50 * 7.3 });
  return {
    row, lineage, children: { count: under.length, by_state, some: under.slice(0, 12) }, chain, circle, deadlock: circle,
    messages: (messages[shortType(row)] ?? []).map((name, i) => ({ name, count: Math.floor(row.handled / (i + 1)), failed: i ? 0 : row.failed, handling_us: q(900 * (i + 1)), waiting_us: q(140) })),
    all_messages: { handling_us: q(1100), waiting_us: q(150) },
    placement: { sentence: row.devices.length ? 'Asked for one device with 24 GiB; first of the two that fit, nearest to its pool.' : `in the process of ${byId.get(row.parent)?.name ?? 'whoever started it'}: it asked for no room and no process of its own`, node: row.node, devices: row.devices },
    lives: lives(row, at), spans,
    series: { rate: series('rate', 'Messages/s', '/s', at, 120, (t) => row.rate * (0.6 + 0.8 * wave(t, row.rate))), mailbox: series('mailbox', 'Mailbox', '', at, 120, (t) => Math.round(row.mailbox.len * (0.4 + wave(t, 3)))) },
  };
}

function lives(row, at) {
  const oom = ['OutOfMemory: asked 12.0 GiB, free 3.1 GiB on ' + (row.devices[0] ?? 'n1/3'), 'the cache of the pool held 48.2 GiB', 'trajectories of version 41 were not dropped'];
  return Array.from({ length: row.incarnation }, (_, i) => {
    const last = i === row.incarnation - 1;
    const from = at - (row.incarnation - i) * 42_000 - (i === 0 ? 400_000 : 0);
    const over = last && row.ended;
    return { number: i + 1, from, to: last && !over ? null : from + 41_000, cause: last && !over ? null : 'out of device memory', chain: last && !over ? [] : oom };
  });
}

function chainOf(row, byId) {
  const chain = [];
  const seen = new Set([row.id]);
  for (let a = row; a?.waits_on; a = byId.get(a.waits_on.id)) {
    const w = a.waits_on;
    const to = byId.get(w.id);
    chain.push({ subject: to ? subject(to) : { kind: 'device', id: w.id, name: w.name }, how: w.how, message: w.message, since: w.since });
    if (seen.has(w.id)) return { chain, circle: true, deadlock: true };
    seen.add(w.id);
  }
  return { chain, circle: false };
}

/** Who has waited longest for others. */
export function waitingIn(all, at) {
  const byId = new Map(all.map((a) => [a.id, a]));
  const waiting = all.filter((a) => a.waits_on && at - a.waits_on.since >= 1000).sort((a, b) => a.waits_on.since - b.waits_on.since);
  return waiting.slice(0, 8).map((a) => ({ subject: subject(a), ...chainOf(a, byId), since: a.waits_on.since }));
}

/** Lets one wait on another. */
export function wait(all, from, to, how, message, since) {
  const [a, b] = [all.find((x) => x.name === from), all.find((x) => x.name === to)];
  Object.assign(a, { state: 'waiting', since, waiting: 0.97, busy: 0.99, rate: 0, current: { message: 'Step', since }, waits_on: { id: b.id, name: b.name, how, message, since } });
}

/** One row a key. */
export function groupsOf(rows, by) {
  const order = ['failed', 'restarting', 'waiting', 'starting', 'busy', 'idle', 'stopped'];
  const all = new Map();
  for (const r of rows) {
    const key = r[by] ?? 'none';
    const g = all.get(key) ?? { key, count: 0, worst: 'stopped', mailbox: { sum: 0, max: 0 }, rate: 0, busy: 0, failed: 0, restarts: 0 };
    g.count += 1;
    if (order.indexOf(r.state) < order.indexOf(g.worst)) g.worst = r.state;
    g.mailbox = { sum: g.mailbox.sum + r.mailbox.len, max: Math.max(g.mailbox.max, r.mailbox.len) };
    g.rate += r.rate;
    g.busy += r.busy;
    g.failed += r.state === 'failed' ? 1 : 0;
    g.restarts += r.restarts;
    all.set(key, g);
  }
  return [...all.values()].map((g) => ({ ...g, busy: g.busy / g.count }));
}

export { subject };
