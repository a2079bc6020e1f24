// Nodes, devices, processes and links of a mock world.
import { series, wave } from './chance.mjs';

const gib = 1024 ** 3;

/** What is on the nodes at a time; it follows waves. */
export function nodesAt(world, at) {
  return Array.from({ length: world.nodeCount }, (_, i) => node(world, i, at));
}

function node(world, i, at) {
  const name = `n${i + 1}`;
  const lost = world.lost?.includes(name);
  const state = lost ? 'down' : world.suspect?.includes(name) ? 'suspect' : 'up';
  const gone = { missing: 'the node does not answer' };
  return {
    name, state, since: lost ? at - 41_000 : world.started, address: `10.0.0.${10 + i}:7700`, leads: i === 0, votes: i < 3, version: '0.3.0', cores: 64,
    cpu: lost ? 0.97 : 0.1 + 0.7 * wave(at, i), memory: { used: lost ? 200 * gib : (60 + 300 * wave(at, i + 9, 200_000)) * gib, total: 512 * gib },
    devices: Array.from({ length: world.gpus }, (_, g) => device(world, i, g, at, lost)), actors: world.actors.filter((a) => a.node === name).length,
    processes: [
      { id: `p${i + 1}`, node: name, pid: 4100 + i, kind: 'worker', job: 'j7', state: lost ? 'gone' : 'running', started: world.started, rss: lost ? gone : 9.1 * gib, cpu: lost ? gone : 3.2 * wave(at, i), actors: world.actors.filter((a) => a.process === `p${i + 1}`).length, dead_letters: world.name === 'small' && i === 1 ? 17 : 0 },
      { id: `d${i + 1}`, node: name, pid: 900 + i, kind: 'node', job: null, state: lost ? 'gone' : 'running', started: world.started, rss: 0.06 * gib, cpu: 0.01, actors: 0, dead_letters: 0 },
    ],
    clock: i === 0 ? { offset_us: 0, error_us: 0 } : { offset_us: 120 * i, error_us: 40 * i }, rtt_us: lost ? gone : i === 0 ? { missing: 'this is the node that answers' } : 180 + 60 * i,
    labels: world.nodeCount > 1 ? { zone: i < world.nodeCount / 2 ? 'east' : 'west' } : {},
  };
}

function device(world, i, g, at, lost) {
  const id = `n${i + 1}/${g}`;
  const faulty = world.faulty?.includes(id);
  const idle = g === 6 && i === 1;
  const free = g === 7 && i > 1;
  const missing = lost ? { missing: 'the node does not answer' } : faulty ? { missing: 'the driver reports a fault' } : null;
  const used = free ? 0.4 : idle ? 2 : world.full?.includes(id) ? 78.4 : 30 + 40 * wave(at, i * 8 + g, 120_000);
  const holder = world.actors.find((a) => a.devices.includes(id)) ?? world.actors[0];
  const subject = { kind: 'actor', id: holder.id, name: holder.name };
  return {
    id, node: `n${i + 1}`, index: g, name: 'H100 80GB', kind: 'cuda', state: faulty ? 'faulty' : 'ok', utilisation: missing ?? (free || idle ? 0 : 0.15 + 0.8 * wave(at, i * 5 + g)),
    memory: { used: missing ?? used * gib, total: 80 * gib }, temperature: missing ?? (g === 5 ? { missing: 'no driver for sensors' } : 40 + 30 * wave(at, g)),
    leases: free ? [] : [{ holder: subject, share: 1 }], owners: free ? [{ subject: null, name: 'other processes, not ours', bytes: 0.4 * gib }] : [{ subject, name: holder.name, bytes: used * 0.7 * gib }, { subject: null, name: 'cache of the pool', bytes: used * 0.25 * gib }, { subject: null, name: 'other processes, not ours', bytes: used * 0.05 * gib }],
    actors: world.actors.filter((a) => a.devices.includes(id)).length,
  };
}

/** Links in both directions between all nodes. */
export function linksAt(world, at) {
  const out = [];
  for (let i = 1; i <= world.nodeCount; i += 1) {
    for (let j = 1; j <= world.nodeCount; j += 1) {
      if (i === j) continue;
      const dead = world.lost?.includes(`n${i}`) || world.lost?.includes(`n${j}`);
      const slow = i === 2 && j === 4;
      out.push({ from: `n${i}`, to: `n${j}`, kind: 'network', rtt_us: dead ? { missing: 'the node does not answer' } : slow ? 9400 : 160 + 20 * i, bytes_per_s: dead ? 0 : slow ? 1.1e6 : 4e8 * wave(at, i * 3 + j), queued_bytes: slow ? 8.1e6 : 0, unacknowledged_bytes: slow ? 2.4e6 : 12_000, resumed: slow ? 3 : 0, last_break: slow ? 'reset by the other side 4 min ago' : null, silent_ms: dead ? 41_000 : 120 });
    }
  }
  return out;
}

const few = (all) => all.slice(0, 12);

/** What is measured of a machine, and of the ranks on it. */
function numbersOf(at) {
  const all = [
    ['cpu', 'processors', 'share', (t) => 0.1 + 0.7 * wave(t, 1)], ['load', 'load', '', (t) => 40 + 20 * wave(t, 2)], ['memory', 'memory', 'bytes', (t) => (60 + 300 * wave(t, 9, 200_000)) * gib], ['major_faults', 'page-ins', '/s', (t) => 3 * wave(t, 3)],
    ['net_received', 'network in', 'B/s', (t) => 9e8 * wave(t, 4)], ['net_sent', 'network out', 'B/s', (t) => 9e8 * wave(t, 5)], ['net_errors', 'network errors', '/s', () => 0], ['retransmits', 'TCP retransmits', '/s', (t) => 8 * wave(t, 6)],
    ['disk_read', 'disk reads', 'B/s', (t) => 2e7 * wave(t, 7)], ['disk_written', 'disk writes', 'B/s', (t) => 6e8 * Math.max(0, wave(t, 8) - 0.7)], ['compute of j7', 'compute of j7', 's', (t) => 0.2 + 0.02 * wave(t, 9)], ['exchange of j7', 'exchange of j7', 's', (t) => 0.1 + 0.03 * wave(t, 10)],
  ];
  return all.map(([name, title, unit, f]) => ({ ...series(name, title, unit, at, 900, f) }));
}

/** The drawers of nodes, devices and processes. */
export function clusterDetail(world, kind, id, at) {
  const nodes = nodesAt(world, at);
  if (kind === 'nodes') {
    const n = nodes.find((x) => x.name === id);
    return n && { node: n, links: linksAt(world, at).filter((l) => l.from === id || l.to === id), actors: few(world.actors.filter((a) => a.node === id)), jobs: [], events: world.events.filter((e) => e.subject?.id === id).slice(-20), series: numbersOf(at) };
  }
  if (kind === 'devices') {
    const d = nodes.flatMap((n) => n.devices).find((x) => x.id === id);
    return d && { device: d, actors: few(world.actors.filter((a) => a.devices.includes(id))), series: { utilisation: series('utilisation', 'Utilisation', 'share', at, 600, (t) => 0.15 + 0.8 * wave(t, d.index)), memory: series('memory', 'Memory', 'bytes', at, 600, (t) => (30 + 40 * wave(t, d.index, 120_000)) * gib) } };
  }
  const p = nodes.flatMap((n) => n.processes).find((x) => x.id === id);
  return p && { process: p, actors: few(world.actors.filter((a) => a.process === id)), events: [], series: { cpu: series('cpu', 'Processor', 'share', at, 300, (t) => 3.2 * wave(t, 1)) } };
}
