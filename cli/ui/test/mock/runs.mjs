// Runs of a mock world: one that learns by reward, one that trains experts, one that only reads data.
import { chance, wave } from './chance.mjs';
import { boardAt } from './jobs.mjs';
import { machinesAt, meshAt, pipelineAt } from './mesh.mjs';

/** @returns {any[]} */
export function runsAt(world, at) {
  if (world.bare) return [];
  if (world.mesh) return [{ ...pretraining(world, at), id: world.plain ? '' : 'default/j7.1' }];
  return world.plain ? [{ ...rl(world, at), id: '' }] : [rl(world, at), experts(world, at)];
}

function rl(world, at) {
  const step = world.forgets ? 1 : 180 + Math.floor((at - world.started) / 6000);
  const curve = (name, title, unit, f) => ({ name, title, unit, x: 'step', points: Array.from({ length: step }, (_, i) => [i + 1, f(i + 1)]) });
  const noise = (i, k) => wave(i * 1000, k, 7000) - 0.5;
  return {
    id: 'default/j7.1', name: 'rl-grid', kind: 'rl', recipe: 'recipes/rl-grid.toml', folder: 'runs/rl-grid', state: 'running', started: world.started, ended: null, progress: { done: step, of: 600, unit: 'steps' },
    facts: [{ name: 'reward', value: 0.71 + 0.02 * wave(at, 1), unit: '' }, { name: 'tokens', value: 41_200 + 900 * wave(at, 2), unit: '/s' }, { name: 'staleness', value: 1.4, unit: 'versions' }, { name: 'policy', value: step, unit: '' }, { name: 'kl', value: 0.013, unit: 'nats' }, { name: 'trainer waits', value: 0.08, unit: 'share' }],
    curves: [curve('reward', 'Reward', '', (i) => 0.75 * (1 - Math.exp(-i / 70)) + 0.06 * noise(i, 1)), curve('loss', 'Policy loss', '', (i) => 0.4 * Math.exp(-i / 90) + 0.03 * noise(i, 2)), curve('kl', 'KL to the reference', 'nats', (i) => 0.004 + i * 0.00005 + 0.002 * noise(i, 3)), curve('entropy', 'Entropy', 'nats', (i) => 1.6 * Math.exp(-i / 300) + 0.05 * noise(i, 4)), curve('length', 'Tokens of an answer', '', (i) => 90 + i * 0.4 + 20 * noise(i, 5)), curve('grad', 'Gradient norm', '', (i) => 0.8 + 0.3 * noise(i, 6))],
    histograms: [{ name: 'staleness', title: 'Staleness of what was trained on', unit: 'versions', bins: [[0, 1, 812], [1, 2, 1411], [2, 3, 390], [3, 4, 71], [4, 5, 4]] }, { name: 'tokens', title: 'Tokens of a trajectory', unit: '', bins: Array.from({ length: 16 }, (_, i) => [i * 32, (i + 1) * 32, Math.round(900 * Math.exp(-((i - 5) ** 2) / 12))]) }],
    rollouts: Array.from({ length: 8 }, (_, r) => ({ subject: { kind: 'actor', id: `a${7 + r}`, name: `rollout/worker-${r}` }, name: `rollout-${r}`, version: step - (r === 5 ? 2 : 0), ...counted(trajectories(r, step, at)) })),
    store: { rows: 614 + Math.round(200 * wave(at, 4)), most: 1024, waiting: 3, in_use: 128 }, board: boardAt(world, at), heat: null, sources: [{ name: 'sums-easy', rate: 310, unit: 'rows/s', buffer: 412, buffer_max: 512, shadow: 'ready on n2' }, { name: 'sums-hard', rate: 88, unit: 'rows/s', buffer: 40, buffer_max: 512, shadow: 'none' }],
  };
}

function pretraining(world, at) {
  const points = Array.from({ length: 120 }, (_, i) => [i + 1, 2.4 + 6 * Math.exp(-i / 30)]);
  return {
    ...experts(world, at), name: 'llama-1b', recipe: 'recipes/pretrain-llama.toml', folder: 'runs/llama-1b', state: 'running', started: world.started, ended: null, progress: null,
    facts: [{ name: 'loss', value: 2.41, unit: 'nats' }, { name: 'tokens per s', value: 41_200, unit: 'tokens/s' }], curves: [{ name: 'train.loss', title: 'loss', unit: 'nats', x: 'step', points }],
    heat: null, mesh: meshAt(world, at), pipeline: pipelineAt(world), machines: machinesAt(world, at),
  };
}

function counted(rows) {
  const n = (state) => rows.filter((t) => t[4] === state).length;
  return { done: n('done'), going: n('going'), dropped: n('dropped'), tokens: rows.reduce((sum, t) => sum + t[3], 0), trajectories: rows };
}

function trajectories(r, step, at) {
  const { below, next } = chance(r * 991 + Math.floor(at / 4000));
  const out = [];
  for (let t = at - 60_000; t < at; t += 2600 + ((r * 700) % 1900)) {
    const took = 2000 + ((r * 7919 + Math.floor(t)) % 2600);
    const going = t + took > at;
    const version = step - Math.floor((at - t) / 6000);
    const state = going ? 'going' : (Math.floor(t) + r) % 11 === 0 ? 'dropped' : 'done';
    out.push([t, going ? null : t + took, version, 60 + below(300), state, state === 'done' ? Number(next().toFixed(2)) : null]);
  }
  return out;
}

function experts(world, at) {
  const { next } = chance(5);
  return {
    id: 'default/j5.1', name: 'moe-1b', kind: 'train', recipe: 'recipes/moe-1b.toml', folder: 'runs/moe-1b', state: 'finished', started: world.started - 9_000_000, ended: world.started - 400_000, progress: { done: 2000, of: 2000, unit: 'steps' },
    facts: [{ name: 'loss', value: 2.41, unit: '' }, { name: 'tokens', value: 131_072_000, unit: '' }],
    curves: [{ name: 'loss', title: 'Loss', unit: '', x: 'step', points: Array.from({ length: 400 }, (_, i) => [i * 5, 2.4 + 6 * Math.exp(-i / 60) + 0.05 * next()]) }],
    histograms: [], rollouts: [], store: null, board: null,
    heat: { title: 'Share of tokens of each expert', unit: 'share', rows: Array.from({ length: 8 }, (_, i) => `layer ${i}`), columns: Array.from({ length: 16 }, (_, i) => `${i}`), values: Array.from({ length: 8 }, () => Array.from({ length: 16 }, () => 0.02 + 0.08 * next())) },
    sources: [],
  };
}
