// The scripted worlds: what each of them is, and how it answers.
import { actorDetail, groupsOf, makeActors, stir, subject, wait, waitingIn } from './actors.mjs';
import { chance, series, wave } from './chance.mjs';
import { clusterDetail, linksAt, nodesAt } from './cluster.mjs';
import { evil } from './evil.mjs';
import { eventsFor, pastProblems, problemsFor } from './trouble.mjs';
import { boardAt, copiesAt, jobDetail, jobsAt, logsOf } from './jobs.mjs';
import { runsAt } from './runs.mjs';
import { aggregate, brief, spanDetail, spansIn, timelineAt, traceDetail } from './timeline.mjs';
import { matches, mentionsSystem, parse } from '../../filter.js';

/** nodes, GPUs a node, rollouts, changes a second, and what is wrong */
const scripts = {
  small: { nodeCount: 4, gpus: 8, rollouts: 1180, churn: 600, sampled: 8, trouble: ['oom', 'wait', 'pending', 'straggler'], straggler: 5, faulty: ['n2/3'], full: ['n1/2'] },
  calm: { nodeCount: 2, gpus: 4, rollouts: 40, churn: 60, trouble: [] },
  deadlock: { nodeCount: 2, gpus: 2, rollouts: 12, churn: 20, trouble: ['deadlock'] },
  oom: { nodeCount: 2, gpus: 8, rollouts: 32, churn: 40, trouble: ['oom'] },
  broadcast: { nodeCount: 4, gpus: 8, rollouts: 32, churn: 40, trouble: ['straggler'], ranks: 24, straggler: 11 },
  lost: { nodeCount: 3, gpus: 8, rollouts: 60, churn: 40, trouble: ['lost'], lost: ['n2'], missing: true },
  big: { nodeCount: 8, gpus: 8, rollouts: 9980, churn: 5000, trouble: [] },
  spans: { nodeCount: 4, gpus: 2, rollouts: 220, churn: 100, trouble: [], lanesPerNode: 48, spanPeriod: 100 },
  rl: { nodeCount: 2, gpus: 4, rollouts: 8, churn: 20, trouble: [] },
  worn: { nodeCount: 2, gpus: 2, rollouts: 12, churn: 20, trouble: [], forgets: 18_000, places: 7 },
  run: { nodeCount: 1, gpus: 0, rollouts: 8, churn: 20, trouble: [], plain: true },
  mesh: { nodeCount: 2, gpus: 4, rollouts: 8, churn: 20, trouble: [], mesh: [['dp', 2], ['pp', 2], ['tp', 2]], lostRank: 6, newRank: 7, machines: 6 },
  wide: { nodeCount: 128, gpus: 8, rollouts: 8, churn: 20, trouble: [], mesh: [['dp', 16], ['pp', 8], ['tp', 8]], machines: 128 },
  empty: { nodeCount: 0, gpus: 0, rollouts: 0, churn: 0, trouble: [], bare: true },
  partial: { nodeCount: 3, gpus: 4, rollouts: 60, churn: 40, trouble: [], suspect: ['n2'], missing: true },
  error: { nodeCount: 1, gpus: 0, rollouts: 4, churn: 0, trouble: [], fault: 'error' },
  slow: { nodeCount: 1, gpus: 0, rollouts: 4, churn: 0, trouble: [], fault: 'slow' },
  replay: { nodeCount: 2, gpus: 4, rollouts: 30, churn: 40, trouble: ['oom'], replay: true },
  xss: { nodeCount: 2, gpus: 2, rollouts: 20, churn: 20, trouble: ['oom', 'wait', 'pending', 'straggler'], straggler: 2, evil: true, missing: true },
};
export const worldNames = Object.keys(scripts);

/** @param {string} name */
export function makeWorld(name) {
  const script = scripts[name];
  const at = Date.now();
  const actors = script.bare ? [] : makeActors({ nodes: script.nodeCount, rollouts: script.rollouts, seed: name.length * 7919, at, places: script.places ?? 0 });
  const world = { name, lost: [], suspect: [], ...script, actors, started: at - 900_000, epoch: `e-${name}`, seq: 1, changed: new Map(), random: chance(11), at: () => Date.now(), events: [], problems: [] };
  world.events = script.bare ? [] : eventsFor(world, at);
  world.problems = problemsFor(world, at, wait);
  world.replay = script.replay ? { name: 'oom-loop.replay', speed: 1, paused: false, at: at - 20_000, from: at - 60_000, to: at + 60_000 } : null;
  world.steer = (input) => Object.assign(world.replay, input);
  const pass = world.evil ? evil : (x) => x;
  world.envelope = (data, shown, total) => pass(envelope(world, data, shown, total));
  world.step = (ms) => step(world, ms);
  world.next = (query, due) => next(world, query, due);
  world.answer = (path, query) => answer(world, path, query);
  return world;
}

function envelope(world, data, shown = 0, total = shown) {
  const now = Date.now();
  const failed = world.actors.filter((a) => a.state === 'failed').length;
  return {
    epoch: world.epoch, seq: (world.seq += 1), captured_at: now, shown, total, dropped: world.name === 'small' ? 1312 : 0, sampled: world.sampled ?? 1, forgotten: world.forgets ? 1_234_567 : 0, kept_from: world.forgets ? now - world.forgets : null, clock_error_us: world.nodeCount > 1 ? 40 : world.nodeCount ? 0 : null,
    missing: world.missing ? [{ node: 'n2', since: world.started + 600_000 > now ? now - 4000 : now - 41_000, why: 'no heartbeat' }] : [],
    head: { name: 'cluster-7', nodes: { up: world.nodeCount - world.lost.length, all: world.nodeCount }, devices: world.nodeCount * world.gpus, actors: { all: world.actors.length, failed }, problems: { error: world.problems.filter((p) => p.severity === 'error').length, warning: world.problems.filter((p) => p.severity === 'warning').length }, spans_per_s: world.bare ? 0 : 8400, replay: world.replay },
    data,
  };
}

function step(world, ms) {
  world.changed = stir(world.actors.length ? world.actors : [], world.actors.length ? Math.round((world.churn * ms) / 1000) : 0, world.random, Date.now());
  if (world.replay && !world.replay.paused) world.replay.at = Math.min(world.replay.to, world.replay.at + ms * world.replay.speed);
  world.fresh = [];
  if (world.events.length && world.random.next() < 0.3) {
    const a = world.actors[world.random.below(world.actors.length)];
    const last = world.events[world.events.length - 1];
    const e = { seq: last.seq + 1, at: Date.now(), kind: 'job', severity: 'info', subject: subject(a), sentence: `collected ${world.random.below(64)} trajectories, mean reward ${world.random.next().toFixed(2)}`, chain: [] };
    world.events.push(e);
    world.fresh.push(e);
  }
}

function next(world, query, due) {
  if (query.view === 'actors' && !query.group) {
    const keep = filtered(world, query);
    if (keep.error) return null;
    const ids = new Set(keep.rows.map((r) => r.id));
    const upsert = [...world.changed.values()].filter((c) => ids.has(c.id));
    return upsert.length || due ? { type: 'delta', envelope: world.envelope({ upsert, remove: [] }, keep.rows.length, keep.rows.length) } : null;
  }
  if (query.view === 'events') {
    const events = eventsBy(world.fresh ?? [], query.filter);
    return events.length || due ? { type: 'append', envelope: world.envelope({ events }, world.events.length, world.events.length) } : null;
  }
  return due || world.random.next() < 0.5 ? { type: 'snapshot', envelope: answer(world, ['view'], query) } : null;
}

function filtered(world, query) {
  const { terms, error: mistake } = parse(query.filter ?? '');
  const unknown = /\bbogus:\S*/.exec(query.filter ?? '');
  const error = unknown ? `\`${unknown[0]}\` in the filter: keys are state: type: node: job: name:` : mistake;
  const now = Date.now();
  const open = mentionsSystem(query.filter ?? '');
  return { error, rows: world.actors.filter((a) => (open || !a.system) && matches(terms, a, now)) };
}

const eventsBy = (events, filter) => {
  const words = (filter ?? '').split(/\s+/).filter(Boolean);
  return events.filter((e) => words.every((w) => {
    const not = w.startsWith('-');
    const [, key, v] = /^-?(kind|severity|subject):(.*)$/.exec(w) ?? [];
    const text = key === 'subject' ? `${e.subject?.id} ${e.subject?.name}` : key ? e[key] : `${e.sentence} ${e.subject?.name}`;
    return text.toLowerCase().includes((v ?? w.replace(/^-/, '')).toLowerCase()) !== not;
  }));
};

const totals = [['messages', 'messages handled', '/s', 3000], ['bytes', 'bytes copied between nodes', 'B/s', 4e8], ['ask_p99', '99th percentile of asks', 'ms', 40], ['mailbox', 'deepest mailbox', 'messages', 240]];
const totalAt = (i, x) => totals[i][3] * (0.2 + 0.2 * wave(x, i, 90_000) + 0.5 * wave(x, i, 9_000_000));

/** A total over a longer time, as far back as five hours: [at, least, most, mean]; of one world a point alone. */
function totalOver(world, { name, from, to, px }) {
  const i = totals.findIndex((t) => t[0] === name);
  if (i < 0) return null;
  const step = Math.max(1000, (to - from) / px);
  const first = Math.max(Number(from), to - (world.forgets ? step : 18_000_000));
  const points = [];
  for (let t = Math.ceil(first / step) * step; t <= to && !world.bare; t += step) points.push([t, totalAt(i, t) * 0.7, totalAt(i, t) * 1.2, totalAt(i, t)]);
  return { name, unit: totals[i][2], points };
}

/** Each problem with a picture, and those that are over. */
const problemsPage = (w, at) => ({
  now: w.problems.map((p) => ({ problem: p, evidence: [['share', 0.98]], pictures: [series('cpu', 'processors', 'share', at, 300, (x) => 0.4 + 0.3 * Math.sin(x / 40_000))] })),
  past: w.bare ? [] : pastProblems(w, at),
});

const views = {
  now: (w, at) => ({ data: { problems: w.problems, waiting: waitingIn(w.actors, at), nodes: nodesAt(w, at), events: w.events.slice(-20), series: w.bare ? [] : totals.map(([n, t, u], i) => series(n, t, u, at, w.forgets ? 1 : 300, (x) => totalAt(i, x))) }, shown: w.problems.length }),
  problems: (w, at) => ({ data: problemsPage(w, at), shown: w.problems.length }),
  cluster: (w, at) => ({ data: { nodes: nodesAt(w, at), links: linksAt(w, at) }, shown: w.nodeCount }),
  actors: (w, at, q) => {
    const { rows, error } = filtered(w, q);
    const cut = rows.slice(0, Number(q.limit ?? 20_000));
    return error ? { invalid: error } : { data: { rows: cut, groups: q.group ? groupsOf(rows, q.group) : null }, shown: cut.length, total: rows.length };
  },
  jobs: (w, at) => ({ data: { jobs: jobsAt(w, at) }, shown: jobsAt(w, at).length }),
  events: (w, at, q) => {
    const before = eventsBy(w.events.filter((e) => !q.before || e.seq < Number(q.before)), q.filter);
    return { data: { events: before.slice(-Number(q.limit ?? 1000)) }, shown: Math.min(before.length, Number(q.limit ?? 1000)), total: before.length };
  },
  transfers: (w, at) => ({ data: w.bare ? { boards: [], copies: [] } : { boards: [boardAt(w, at)], copies: copiesAt(w, at) }, shown: w.bare ? 0 : 60 }),
  runs: (w, at) => ({ data: { runs: runsAt(w, at) }, shown: w.bare ? 0 : 2 }),
};

function answer(world, [what, ...rest], query) {
  const at = Date.now();
  const id = rest.length ? rest.join('/') : undefined;
  if (what === 'view') {
    const got = views[query.view]?.(world, at, query);
    return got?.invalid ? got : got && world.envelope(got.data, got.shown, got.total ?? got.shown);
  }
  if (what === 'timeline') {
    const got = timelineAt(world, query, at);
    return world.envelope(got.data, got.shown, got.total);
  }
  const data = detail(world, what, id, query, at);
  return what === 'about' || data?.invalid ? data : data && world.envelope(data, 1, 1);
}

function detail(world, what, id, query, at) {
  if (what === 'about') return { name: 'cluster-7', version: '0.3.0', epoch: world.epoch, started: world.started, allow_actions: world.name === 'small', faces: { jobs: !world.plain, runs: true }, limits: [{ name: 'spans of a worker', value: 67_108_864, unit: 'bytes', why: 'errors and the slowest are kept longest' }, { name: 'events', value: 100_000, unit: '', why: 'the oldest go first' }] };
  if (what === 'actors') return actorDetail(world.actors, id, at, ['.0', '.1', '.2', '.3', '.4'].map((x, i) => brief(world, `s${id.slice(1)}.${Math.floor(at / 1300) - i - 2}`, at)).filter(Boolean));
  if (['nodes', 'devices', 'processes'].includes(what)) return clusterDetail(world, what, id, at);
  if (what === 'jobs') return jobDetail(world, id, at);
  if (what === 'transfers') return { copy: copiesAt(world, at).find((c) => c.id === id) ?? copiesAt(world, at)[3], board: null };
  if (what === 'spans') return id ? spanDetail(world, id, at) : { spans: spansIn(world, query, at).slice(0, Number(query.limit ?? 200)).map((s) => ({ ...brief(world, s.id, at) })) };
  if (what === 'traces') return traceDetail(world, id, at);
  if (what === 'aggregate') return aggregate(world, query, at);
  if (what === 'logs') return logsOf(world, at, query);
  if (what === 'series') return totalOver(world, query);
  return null;
}
