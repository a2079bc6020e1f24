// Answers what the pages ask out of what an exported file holds; nothing leaves it.
// @ts-check
import { matches, mentionsSystem, parse } from '../filter.js';
import { laidOut, sums } from './lanes.js';

const stepMs = 250;
const aliveMs = 4000;
/** @type {any} */
let holds = null;
/** Where it is: moments of the file, played like a recording. */
const place = { moment: 0, at: 0, speed: 1, paused: true, epoch: 1 };
/** @type {Set<{ send: (text: string) => void, query: any, sent: number }>} */
const streams = new Set();
/** What the pages showed at a moment, and the rows of actors then. @type {{ moment: number, pages: any, rows: Map<string, any> }} */
let shown = { moment: -1, pages: {}, rows: new Map() };

/** @param {string} packed */
export async function begin(packed) {
  const bytes = Uint8Array.from(atob(packed.trim()), (c) => c.charCodeAt(0));
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  holds = await new Response(inflated).json();
  place.moment = holds.heads.length - 1;
  place.at = holds.to;
  globalThis.fetch = async (address, options) => answer(String(address), options);
  setInterval(play, stepMs);
}

/** @param {string} address @param {RequestInit} [options] */
async function answer(address, options) {
  const [path, rest] = address.replace('/api/v1/', '').split('?');
  const query = Object.fromEntries(new URLSearchParams(rest ?? ''));
  if (path === 'inspect/stream') return stream(query, options?.signal ?? null);
  if (path === 'inspect/about') return json({ ...holds.about, exported: holds.holds, moments: holds.heads.length });
  if (path === 'inspect/replay') return steer(JSON.parse(String(options?.body ?? '{}')));
  const data = look(path.replace('inspect/', ''), query, rest ?? '');
  return data ? json(envelope(data)) : json({ kind: 'unknown', why: `This file does not hold it. It has ${holds.holds}` }, 404);
}

/** @param {any} value */
const json = (value, status = 200) => new Response(JSON.stringify(value), { status, headers: { 'content-type': 'application/json' } });

/** @param {{ data: any, shown?: number, total?: number }} page */
function envelope({ data, shown: rows, total }) {
  const head = holds.heads[place.moment];
  return { ...head, epoch: String(place.epoch), seq: place.moment, captured_at: place.at, shown: rows ?? 1, total: total ?? rows ?? 1, head: { ...head.head, replay: replay() }, data };
}

const replay = () => ({ name: `${holds.heads[place.moment].head.name}, as a file`, speed: place.speed, paused: place.paused, at: place.at, from: holds.from, to: holds.to });

/** How many spans there were where the file was made; it says so in words only. */
const inAll = () => Number(/ of (\d+) spans/.exec(holds.holds)?.[1] ?? holds.spans.length);

/** @param {string} path @param {any} query @param {string} rest @returns {any} */
function look(path, query, rest) {
  const { from, to } = { from: Number(query.from), to: Number(query.to) };
  if (path === 'view') return page(query);
  if (path === 'timeline') return { data: laidOut(holds.tiles, from, to, new Set((query.open ?? '').split(','))), shown: holds.spans.length, total: inAll() };
  if (path === 'spans') {
    const spans = holds.spans.filter((s) => s.start <= to && (s.end ?? to) >= from);
    return { data: { spans: spans.slice(0, Number(query.limit ?? 500)) }, shown: spans.length, total: spans.length };
  }
  if (path === 'aggregate') return { data: { rows: sums(holds.spans, from, to) } };
  if (path.startsWith('spans/')) return one(path.slice(6));
  if (path.startsWith('traces/')) {
    const spans = holds.spans.filter((s) => s.trace === path.slice(7));
    return spans.length ? { data: { trace: path.slice(7), spans, critical: [], lost: 0 } } : null;
  }
  if (path === 'series') return { data: { name: query.name, unit: '', points: [] } };
  const data = holds.answers[decodeURIComponent(path)] ?? holds.answers[path] ?? (path === 'logs' && !query.actor && !query.process ? holds.answers[`logs?${query.job ? `job=${query.job}&` : ''}limit=500`] : undefined) ?? holds.answers[`${path}?${rest}`];
  return data === undefined ? null : { data };
}

/** @param {string} id */
function one(id) {
  const span = holds.spans.find((s) => s.id === id);
  if (!span) return null;
  const cause = holds.spans.find((s) => s.id === span.parent) ?? null;
  return { data: { span: { ...span, error: null, node: '', process: '', caller: cause?.actor ?? null, attributes: {} }, cause, effects: holds.spans.filter((s) => s.parent === id) } };
}

/** @param {any} query */
function page(query) {
  move();
  if (query.view !== 'actors') {
    const is = shown.pages[query.view];
    if (query.view !== 'events' || !is) return is;
    const before = Number(query.before ?? Infinity);
    return { ...is, data: { events: is.data.events.filter((e) => e.seq < before) } };
  }
  const { terms } = parse(query.filter ?? '');
  const all = [...shown.rows.values()].filter((r) => (mentionsSystem(query.filter ?? '') || !r.system) && matches(terms, r, place.at));
  if (query.group) return { data: { rows: [], groups: groups(all, query.group) }, shown: all.length, total: all.length };
  return { data: { rows: all, groups: null }, shown: all.length, total: all.length };
}

const order = ['idle', 'stopped', 'starting', 'busy', 'waiting', 'restarting', 'failed'];

/** @param {any[]} rows @param {string} by */
function groups(rows, by) {
  const all = new Map();
  for (const row of rows) {
    const key = String(row[by] ?? '');
    all.set(key, [...(all.get(key) ?? []), row]);
  }
  const sum = (of, f) => of.reduce((n, r) => n + f(r), 0);
  return [...all].map(([key, of]) => ({ key, count: of.length, worst: of.reduce((w, r) => (order.indexOf(r.state) > order.indexOf(w) ? r.state : w), 'idle'), mailbox: { sum: sum(of, (r) => r.mailbox.len), max: Math.max(...of.map((r) => r.mailbox.len)) }, rate: sum(of, (r) => r.rate), busy: sum(of, (r) => r.busy) / of.length, failed: sum(of, (r) => r.failed), restarts: sum(of, (r) => r.restarts) }));
}

/** Puts together what was shown at the moment, from what has changed up to there. */
function move() {
  if (shown.moment > place.moment) shown = { moment: -1, pages: {}, rows: new Map() };
  while (shown.moment < place.moment) {
    shown.moment += 1;
    Object.assign(shown.pages, holds.pages[shown.moment]);
    const { upsert, remove } = holds.actors[shown.moment];
    for (const id of remove) shown.rows.delete(id);
    for (const row of upsert) shown.rows.set(row.id, row);
  }
}

/** @param {any} wish */
function steer(wish) {
  if (wish.speed) place.speed = wish.speed;
  if (wish.paused === false && place.at >= holds.to) to(holds.from);
  if (wish.paused !== undefined) place.paused = wish.paused || holds.heads.length === 1;
  if (wish.at !== undefined) to(wish.at);
  for (const s of streams) send(s);
  return json(replay());
}

/** @param {number} at */
function to(at) {
  const before = place.moment;
  place.at = Math.min(holds.to, Math.max(holds.from, at));
  const next = holds.heads.findIndex((h) => h.captured_at > place.at);
  place.moment = Math.max(0, next < 0 ? holds.heads.length - 1 : next - 1);
  if (place.moment < before) place.epoch += 1;
}

function play() {
  if (!place.paused) to(place.at + stepMs * place.speed);
  if (place.at >= holds.to) place.paused = true;
  const now = performance.now();
  for (const s of streams) if (!place.paused || now - s.sent > aliveMs) send(s);
}

/** @param {any} s */
function send(s) {
  const is = page(s.query);
  s.sent = performance.now();
  if (is) s.send(`event: snapshot\ndata: ${JSON.stringify(envelope(is))}\n\n`);
}

/** @param {any} query @param {AbortSignal | null} signal */
function stream(query, signal) {
  const text = new TextEncoder();
  const body = new ReadableStream({
    start(to_) {
      const s = { query, sent: 0, send: (/** @type {string} */ piece) => to_.enqueue(text.encode(piece)) };
      streams.add(s);
      signal?.addEventListener('abort', () => {
        streams.delete(s);
        to_.error(signal.reason);
      });
      send(s);
    },
  });
  return new Response(body, { headers: { 'content-type': 'text/event-stream' } });
}
