// Jobs, version boards and copies of a mock world.
import { wave } from './chance.mjs';

const job = (over) => ({ id: 'j1', name: 'rl-sums', namespace: 'default', state: 'running', since: 0, submitted: 0, by: 'ada', priority: 0, program: 'odeon', arguments: ['run', 'recipes/rl-sums.toml'], attempt: 1, attempts: 3, node: 'n1', actors: 0, needs: '1 CPU', phases: [], refusal: null, exit: null, ...over });

/** Jobs in many states. */
export function jobsAt(world, at) {
  if (world.bare || world.plain) return [];
  const s = world.started;
  const phases = (...of) => of.map(([name, from, ms]) => ({ name, at: s + from, ms }));
  return [
    job({ id: 'j9', name: 'pretrain-8b', state: 'placing', since: at - 312_000, submitted: at - 320_000, needs: '32 GPUs with 60 GiB free, in one zone', program: 'target/release/pretrain', arguments: ['--config', '8b.toml'], node: null, attempt: 1, priority: 10,
      phases: [{ name: 'queued', at: at - 320_000, ms: 8000 }, { name: 'placing', at: at - 312_000, ms: null }],
      refusal: { sentence: '32 GPUs with 60 GiB were asked; at most 17 fit at once, and none of the zones holds them together.', rows: [
        { node: 'n1', asked: '8 GPUs, 60 GiB each', free: '2 GPUs, 71 GiB', why: '6 of 8 GPUs are leased to j7', fits: false },
        { node: 'n2', asked: '8 GPUs, 60 GiB each', free: '7 GPUs, 31 GiB', why: 'memory: 31 GiB is free on n2/6, 60 GiB asked', fits: false },
        { node: 'n3', asked: '8 GPUs, 60 GiB each', free: '8 GPUs, 79 GiB', why: '', fits: true },
        { node: 'n4', asked: '8 GPUs, 60 GiB each', free: '0 GPUs', why: 'the node drains', fits: false }] } }),
    job({ id: 'j7', name: 'rl-grid', state: 'running', since: s + 9000, submitted: s, needs: '4 nodes, 8 GPUs each', actors: world.actors.filter((a) => a.job === 'j7').length, phases: phases(['queued', 0, 2100], ['placing', 2100, 900], ['starting', 3000, 6000], ['running', 9000, null]) }),
    job({ id: 'j8', name: 'eval-nightly', state: 'failed', since: s + 300_000, submitted: s + 120_000, by: 'cron', program: 'odeon', arguments: ['eval', 'runs/rl-sums', '--task', 'gsm8k'], attempt: 3, phases: phases(['queued', 120_000, 1000], ['starting', 121_000, 4000], ['running', 125_000, 175_000]),
      exit: { sentence: 'The worker on n2 was killed for memory in its third attempt.', code: 137, chain: ['the process of p2 ended with signal 9', 'the node n2 had 0.4 GiB of memory left', 'four evaluations ran side by side where two fit'] } }),
    job({ id: 'j6', name: 'tokenize', state: 'succeeded', since: s + 90_000, submitted: s - 900_000, exit: { sentence: 'Done.', code: 0, chain: [] }, phases: phases(['queued', -900_000, 400], ['starting', -899_600, 2000], ['running', -897_600, 987_600]) }),
    job({ id: 'j5', name: 'sweep-lr', state: 'stopped', since: s - 10_000, submitted: s - 2_000_000, by: 'grace', exit: { sentence: 'Stopped by grace.', code: 143, chain: [] }, phases: phases(['queued', -2_000_000, 1000], ['running', -1_999_000, 1_989_000]) }),
  ];
}

/** @returns {any} */
export function jobDetail(world, id, at) {
  const j = jobsAt(world, at).find((x) => x.id === id);
  return j && { job: j, actors: world.actors.filter((a) => a.job === id).slice(0, 8), events: world.events.filter((e) => e.subject?.id === id) };
}

/** Who wrote the lines that are asked for: processes, or why there are none. */
function writersOf(world, { job, actor, process }) {
  const id = process ?? world.actors.find((a) => a.id === actor)?.process;
  if (id?.startsWith('d')) return { none_kept: 'what daemons say is in the journal of their machine' };
  if (actor || process) return world.actors.some((a) => a.process === id) ? [id] : null;
  if (job) return job === 'j5' ? { none_kept: 'the lines of j5 are kept no more, or not here' } : jobsAt(world, 0).some((j) => j.id === job) ? ['driver', 'p1', `p${world.nodeCount}`] : null;
  return world.plain ? ['p1'] : { invalid: 'say whose lines: one of job=, actor= and process=' };
}

/** Lines of a job, a process or a run, newest last. */
export function logsOf(world, at, query) {
  const by = writersOf(world, query);
  if (!Array.isArray(by)) return by?.none_kept ? { lines: [], more: false, ...by } : by;
  const until = Number(String(query.before ?? at).split(':')[0]);
  const lines = Array.from({ length: Math.min(80, Number(query.limit ?? 80)) }, (_, i) => {
    const n = Math.floor(until / 700) - 80 + i;
    return { at: n * 700, node: `n${1 + (n % Math.max(1, world.nodeCount))}`, process: by[n % by.length], attempt: query.job === 'j8' ? 2 + (i > 40) : 1, stream: n % 17 === 0 ? 'err' : 'out', text: n % 17 === 0 ? `warning: step ${n % 10_000} took 2.4 times the median` : `step ${n % 10_000} loss ${(2 + Math.sin(n)).toFixed(3)} tokens/s ${40_000 + (n % 900)}` };
  });
  const more = at - until < 600_000;
  return { lines, more, ...(more ? { earlier: `${lines[0]?.at ?? until}:0` } : {}) };
}

/** Who has which weights. One rank is slow where the world says so. */
export function boardAt(world, at) {
  const ranks = world.ranks ?? 8;
  const version = 180 + Math.floor((at - world.started) / 6000);
  const part = ((at - world.started) % 6000) / 6000;
  const versions = Array.from({ length: 7 }, (_, i) => version - 6 + i);
  const slow = world.straggler ?? -1;
  const rows = Array.from({ length: ranks }, (_, r) => ({
    name: `rollout/worker-${r}`, subject: { kind: 'actor', id: `a${r + 7}`, name: `rollout/worker-${r}` },
    cells: versions.map((v) => {
      const behind = r === slow ? 2 : 0;
      const share = Math.max(0, Math.min(1, part * (r === slow ? 0.5 : 1.8) - r * 0.05));
      if (v > version - behind) return { state: 'none', share: 0 };
      if (v === version - behind) return share >= 1 ? { state: 'whole', share: 1 } : { state: share > 0 ? 'receiving' : 'none', share };
      return { state: v === version - behind - 1 ? 'used' : 'whole', share: 1 };
    }),
  }));
  const edges = rows.map((_, r) => ({ from: r < 2 ? -1 : Math.floor(r / 2) - 1, to: r, gb_per_s: r === slow ? 0.9 : 8 + 4 * wave(at, r), straggler: r === slow }));
  return { id: 'b1', name: 'policy weights', versions, rows, edges, source: { kind: 'actor', id: 'a0', name: 'trainer' } };
}

/** Copies, newest first. */
export function copiesAt(world, at) {
  const routes = ['device', 'shared memory', 'network', 'socket'];
  return Array.from({ length: 60 }, (_, i) => {
    const n = Math.floor(at / 900) - i;
    const took = 200 + (n % 7) * 130;
    const start = n * 900;
    const bytes = (1 + (n % 5)) * 268_435_456;
    const over = at - start > took;
    const failed = n % 23 === 0;
    const expected = [40, 18, 12, 3][n % 4];
    return { id: `c${n}`, start, end: over ? start + took : null, from: { kind: 'actor', id: 'a0', name: 'trainer' }, to: { kind: 'actor', id: `a${7 + (n % 8)}`, name: `rollout/worker-${n % 8}` }, what: `policy weights v${180 + (n % 40)}, piece ${n % 12}`, bytes, done: over ? bytes : bytes * ((at - start) / took), route: routes[n % 4], gb_per_s: over ? (bytes / 1e9 / took) * 1000 : { missing: 'not over' }, expected_gb_per_s: n % 4 === 3 ? { missing: 'no expectation for this route' } : expected, ok: !(failed && over), error: failed && over ? 'the receiver ended before the last piece' : null, span: n % 2 ? `s4.${n}` : null };
  });
}
