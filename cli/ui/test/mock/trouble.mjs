// What is wrong in a mock world: the problems it shows, the actors it breaks, the events it left.
import { subject } from './actors.mjs';

const problem = (over) => ({ rule: 'pending', severity: 'warning', count: 1, sentence: '', since: 0, subjects: [], done: 'nothing: people are told', advice: '`odeon why JOB` says who holds what it needs', ...over });

/** Problems that are over, the newest first. */
export const pastProblems = (world, at) => [
  { rule: 'slow_link', sentence: '120 ms to node n1 and back (limit 100 ms)', subject: { kind: 'node', id: 'n1', name: 'n1' }, since: at - 900_000, ended: at - 840_000 },
  { rule: 'stuck_handler', sentence: 'trainer has handled one message for 12 s (limit 10 s)', subject: subject(world.actors[0]), since: at - 1_900_000, ended: at - 1_880_000 },
];

/** Breaks actors as the script says and returns the problems. */
export function problemsFor(world, at, wait) {
  const out = [];
  for (const kind of world.trouble) out.push(...troubles[kind](world, at, wait));
  if (world.full) out.push(problem({ rule: 'device_memory', sentence: 'n1/2 uses 78.4 of 80 GiB, more than 95 %.', since: at - 90_000, subjects: [{ kind: 'device', id: 'n1/2', name: 'n1/2' }] }));
  return out;
}

const troubles = {
  oom: (world, at) => {
    const some = world.actors.filter((a) => a.name?.startsWith('rollout/worker')).slice(16, 19);
    for (const a of some) Object.assign(a, { state: 'failed', since: at - 12_000, incarnation: 4, restarts: 3, failed: 4, busy: 0, rate: 0, current: null, ended: { at: at - 12_000, sentence: 'out of device memory: asked 12.0 GiB, free 3.1 GiB' } });
    const again = world.actors.filter((a) => a.name?.startsWith('rollout/worker')).slice(19, 21);
    for (const a of again) Object.assign(a, { state: 'restarting', since: at - 700, incarnation: 3, restarts: 2, rate: 0, busy: 0, current: null });
    return [problem({ rule: 'actor_failed', severity: 'error', count: some.length, sentence: '3 actors failed in the last minute: out of device memory.', since: at - 12_000, subjects: some.map(subject) }), problem({ rule: 'restart_loop', severity: 'error', count: 2, sentence: '2 actors restarted 3 times in 60 s; after 5 their supervisor gives up.', since: at - 30_000, subjects: again.map(subject) })];
  },
  wait: (world, at, wait) => {
    wait(world.actors, 'trainer', 'rollout/pool-n1', 'ask', 'Collect', at - 41_000);
    wait(world.actors, 'rollout/pool-n1', 'rollout/worker-4', 'room', 'Collect', at - 40_200);
    return [problem({ rule: 'stuck_handler', sentence: 'trainer has waited 41 s on rollout/pool-n1 (more than 10 s in one message).', since: at - 31_000, subjects: [subject(world.actors[0])] })];
  },
  deadlock: (world, at, wait) => {
    wait(world.actors, 'trainer', 'store', 'ask', 'Take', at - 73_000);
    wait(world.actors, 'store', 'relay', 'ask', 'Fetch', at - 72_400);
    wait(world.actors, 'relay', 'trainer', 'ask', 'Publish', at - 72_100);
    return [problem({ rule: 'deadlock', severity: 'error', count: 3, sentence: 'trainer, store and relay wait for each other; none can go on.', since: at - 72_100, subjects: world.actors.slice(0, 3).map(subject) })];
  },
  pending: (world, at) => [problem({ rule: 'pending', sentence: 'pretrain-8b has been pending for 5 m: 32 GPUs with 60 GiB were asked, at most 17 fit.', since: at - 312_000, subjects: [{ kind: 'job', id: 'j9', name: 'pretrain-8b' }] })],
  straggler: (world, at) => [problem({ rule: 'straggler', sentence: `rollout/worker-${world.straggler} takes weights at 0.9 GB/s, the median is 10 GB/s (less than half).`, since: at - 61_000, subjects: [{ kind: 'actor', id: `a${7 + world.straggler}`, name: `rollout/worker-${world.straggler}` }] })],
  lost: (world, at) => {
    for (const a of world.actors.filter((x) => x.node === 'n2')) Object.assign(a, { state: 'failed', since: at - 41_000, rate: 0, busy: 0, waiting: 0, current: null, ended: { at: at - 41_000, sentence: 'its node n2 was lost' } });
    return [problem({ rule: 'node_down', severity: 'error', sentence: 'n2 has been silent for 41 s; it was taken for lost after 10 s.', since: at - 41_000, subjects: [{ kind: 'node', id: 'n2', name: 'n2' }] })];
  },
};

/** Events up to now, the newest last. */
export function eventsFor(world, at) {
  const workers = world.actors.filter((a) => !a.system);
  const out = [{ seq: 1, at: world.started, kind: 'node', severity: 'info', subject: { kind: 'node', id: 'n1', name: 'n1' }, sentence: 'n1 joined and leads', chain: [] }];
  for (let i = 0; i < 400; i += 1) {
    const a = workers[(i * 31) % workers.length];
    const when = world.started + (i / 400) * (at - 20_000 - world.started);
    const pick = i % 9;
    const base = { seq: out.length + 1, at: when, subject: subject(a), chain: [] };
    if (pick === 3) out.push({ ...base, kind: 'started', severity: 'info', sentence: `started on ${a.node}` });
    else if (i % 57 === 7) out.push({ ...base, kind: 'failure', severity: 'error', sentence: 'failed while it handled Collect', chain: ['OutOfMemory: asked 12.0 GiB, free 3.1 GiB', 'the cache of the pool held 48.2 GiB', 'trajectories of version 41 were not dropped'] });
    else if (i % 57 === 8) out.push({ ...base, kind: 'restart', severity: 'warning', sentence: 'restart 3 of 5 after 800 ms, said its supervisor rollout/pool-n1' });
    else if (i === 300) out.push({ ...base, kind: 'job', severity: 'error', subject: { kind: 'job', id: 'j8', name: 'eval-nightly' }, sentence: 'failed in its third attempt', chain: ['the process of p2 ended with signal 9'] });
    else out.push({ ...base, kind: 'job', severity: 'info', sentence: `step ${i} loss ${(2 + Math.sin(i)).toFixed(3)}` });
  }
  return out;
}
