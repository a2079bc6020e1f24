// A mock run of pretraining: ranks on a mesh, one of which is slow, its pipeline, and the memory of each.
import { wave } from './chance.mjs';

/** @param {[string, number][]} dims */
const places = (dims, rank) => {
  const at = [];
  for (let i = dims.length - 1, rest = rank; i >= 0; rest = Math.floor(rest / dims[i][1]), i -= 1) at.unshift(rest % dims[i][1]);
  return at;
};

/** The last tensor rank is slow, and the others wait for it. */
function seconds(at, tp, rank, now) {
  const slow = tp > 1 && at[at.length - 1] === tp - 1;
  const compute = (slow ? 0.31 : 0.21) + 0.004 * wave(now, rank, 3000);
  return { compute, exchange: (slow ? 0.02 : 0.12) + 0.003 * wave(now, rank + 1, 3000), wait: 0.004 };
}

const MiB = 2 ** 20;

export function meshAt(world, now) {
  const dims = world.mesh;
  const all = dims.reduce((n, [, size]) => n * size, 1);
  const [tp] = dims.filter(([name]) => name === 'tp').map(([, size]) => size);
  const stage = dims.findIndex(([name]) => name === 'pp');
  const ranks = Array.from({ length: all }, (_, rank) => {
    const coordinates = places(dims, rank);
    const state = world.lostRank === rank ? 'lost' : world.newRank === rank ? 'starting' : 'running';
    const first = stage < 0 || coordinates[stage] === 0;
    const own = (first ? 900 : 620) * MiB;
    const node = `n${1 + Math.floor((rank * world.nodeCount) / all)}`;
    return {
      rank, coordinates, state, actor: { kind: 'actor', id: `a${7 + (rank % 8)}`, name: `rank-${rank}` }, node, process: `p${rank}`, devices: world.gpus ? [`${node}/${rank % world.gpus}`] : [],
      step: state === 'starting' ? null : 120, last: state === 'starting' ? null : seconds(coordinates, tp ?? 1, rank, now),
      memory: { parameters: own, gradients: own, optimizer: 2 * own, gathered: 0, activations: state === 'starting' ? null : own / 2 + rank * MiB },
      resident: state === 'lost' ? { missing: 'the process is gone' } : 5 * own + rank * MiB,
    };
  });
  const known = ranks.filter((r) => r.last).map((r) => r.last);
  const over = (of) => Object.fromEntries(['compute', 'exchange', 'wait'].map((part) => [part, of.map((s) => s[part])]));
  const mean = (of) => (of.length ? Object.fromEntries(Object.entries(over(of)).map(([part, v]) => [part, v.reduce((a, b) => a + b, 0) / v.length])) : null);
  const median = Object.fromEntries(Object.entries(over(known)).map(([part, v]) => [part, v.sort((a, b) => a - b)[Math.floor(v.length / 2)]]));
  const of = ([name, size], d) => ({ name, size, means: Array.from({ length: size }, (_, i) => mean(ranks.filter((r) => r.coordinates[d] === i && r.last).map((r) => r.last))) });
  const standbys = [{ standby: 0, actor: { kind: 'actor', id: 'a99', name: 'standby-0' }, node: `n${world.nodeCount}` }];
  return { dims: dims.map(of), ranks, median, standbys };
}

/** 1F1B of as many ranks as there are stages: forward 10 ms, backward 20 ms. */
export function pipelineAt(world) {
  const stages = world.mesh.find(([name]) => name === 'pp')?.[1];
  if (!stages) return null;
  const micros = 2 * stages;
  const end = new Map();
  const key = (kind, stage, micro) => `${kind} ${stage} ${micro}`;
  const lanes = Array.from({ length: stages }, (_, s) => {
    const ahead = Math.min(micros, stages - 1 - s);
    const order = [];
    for (let f = 0, b = 0; b < micros;) {
      if (f < micros && f <= b + ahead) order.push(['forward', f++]);
      else order.push(['backward', b++]);
    }
    return { order, at: 0, passes: [] };
  });
  for (let left = 2 * micros * stages; left > 0;) {
    lanes.forEach((lane, s) => {
      const [kind, micro] = lane.order[lane.passes.length] ?? [];
      if (!kind) return;
      const before = kind === 'forward' ? (s ? end.get(key(kind, s - 1, micro)) : 0) : s + 1 < stages ? end.get(key(kind, s + 1, micro)) : end.get(key('forward', s, micro));
      if (before === undefined) return;
      const from = Math.max(lane.at, before);
      lane.at = from + (kind === 'forward' ? 10 : 20);
      end.set(key(kind, s, micro), lane.at);
      lane.passes.push([from, lane.at, kind, micro, 0]);
      left -= 1;
    });
  }
  const ms = Math.max(...lanes.map((l) => l.at));
  const idle = (l) => 1 - l.passes.reduce((all, p) => all + p[1] - p[0], 0) / ms;
  const step = world.mesh[world.mesh.length - 1][0] === 'tp' ? world.mesh[world.mesh.length - 1][1] : 1;
  return {
    step: 120, start: world.started, ms, schedule: '1f1b', micro_batches: micros, chunks: 1, idle_share: lanes.reduce((all, l) => all + idle(l), 0) / stages, schedule_idle_share: (stages - 1) / (micros + stages - 1),
    lanes: lanes.map((l, s) => ({ rank: s * step, idle_share: idle(l), passes: l.passes })),
  };
}

/** What is compared of machines: title, unit, median, how far the slow one is off, and what a deviation is. */
const compared = [
  ['retransmits', 'TCP retransmits', '/s', 2, 0, 7], ['process_cpu', 'processors', '', 7.6, -1.1, 0.6], ['utilisation', 'utilisation', 'share', 0.93, -0.2, 0.03], ['power', 'power', 'W', 640, -90, 21], ['clock', 'clock', 'Hz', 1.98e9, -4e8, 6.6e7],
  ['compute', 'compute', 's', 0.212, 0.08, 0.0035], ['exchange', 'exchange', 's', 0.118, -0.06, 0.01], ['wait', 'wait for data', 's', 0.004, 0, 0.002], ['temperature', 'temperature', '\u00b0C', 61, 14, 5],
];

/** The machines of a run, the third of which is slow for the last minutes. */
export function machinesAt(world, now) {
  if (!world.machines) return [];
  const shown = Math.min(world.machines, 64);
  const machine = (i) => ({ node: `n${i + 1}`, ranks: 8, cells: compared.map(([name, , , median, off, unit], m) => {
    if (i === 1 && name === 'clock') return null;
    const at = (t) => median + 0.6 * unit * (wave(t, i * 3 + m, 90_000) - 0.5) + (i === 2 && t > now - 200_000 ? off : 0);
    const points = Array.from({ length: 20 }, (_, p) => at(now - (19 - p) * 15_000));
    const mean = points.reduce((a, b) => a + b, 0) / points.length;
    return { mean, deviations: (mean - median) / unit, points: shown > 24 ? [] : points };
  }) });
  return [{ stages: ['compute'], seconds: 300, total: world.machines, metrics: compared.map(([name, title, unit, median]) => ({ name, title, unit, median })), machines: Array.from({ length: shown }, (_, i) => machine(i)) }];
}
