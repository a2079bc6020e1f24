// What is known now: the connection, the head of every page, and the data of the view that is open.
// @ts-check
import { batch, computed, signal } from './vendor/preact.js';
import { applyDelta, mergeEvents } from './delta.js';
/** @template T @typedef {import('./vendor/preact.js').Signal<T>} Signal */
/** @typedef {import('./types').Meta} Meta @typedef {import('./types').Head} Head @typedef {import('./types').Failure} Failure */

/** How many events are kept in the page. */
const eventsMost = 20_000;
/** How many points of a row's rate are kept for its sparkline. */
const ratesMost = 60;

/** connecting, live, stale, paused, hidden, locked, failed @type {Signal<any>} */
export const conn = signal({ phase: 'connecting', since: 0, retry_at: 0 });
/** @type {Signal<Head | null>} */
export const head = signal(null);
/** @type {Signal<(Meta & { received: number }) | null>} */
export const meta = signal(null);
/** @type {Signal<any>} */
export const about = signal(null);
/** When the daemon was seen to have restarted. @type {Signal<number | null>} */
export const restarted = signal(null);
/** Something to say once, until it is dismissed. @type {Signal<string | null>} */
export const noted = signal(null);
export const paused = signal(false);
/** Counts up once a second; ages follow it. */
export const tick = signal(0);
/** The view that is open; `wrong` is why its filter is not applied. @type {Signal<any>} */
export const live = signal({ key: '', view: '', status: 'loading', data: null, error: null, wrong: null, meta: null });
/** What the views that were open showed last, for when the connection breaks. @type {Map<string, { data: any, meta: any }>} */
const before = new Map();
/** Rates of actors over time: [at, rate] @type {Map<string, [number, number][]>} */
export const rates = new Map();

/** The source's time: it runs on while the stream is live and stands still when it is not. */
export const now = computed(() => {
  tick.value;
  conn.value.phase;
  return instant();
});

export const stale = computed(() => ['stale', 'failed', 'locked'].includes(conn.value.phase));

/** The source's time at this very moment; for what is drawn every frame. */
export function instant() {
  const m = meta.peek();
  if (!m) return Date.now();
  const r = head.peek()?.replay;
  const pace = r ? (r.paused || r.at >= r.to ? 0 : r.speed) : 1;
  return conn.peek().phase === 'live' ? m.captured_at + (performance.now() - m.received) * pace : m.captured_at;
}

/** How old what is shown is, in milliseconds. */
export const ageOf = computed(() => {
  tick.value;
  return meta.value ? performance.now() - meta.value.received : null;
});

/** Takes what every envelope says about itself. @param {any} envelope */
function takeMeta(envelope) {
  const { data: _, head: fresh, ...rest } = envelope;
  const old = meta.peek();
  batch(() => {
    if (old && old.epoch !== rest.epoch) {
      // A recording that goes back begins anew; a daemon that does was another one before.
      if (!fresh?.replay) restarted.value = rest.captured_at;
      rates.clear();
    }
    meta.value = { ...rest, received: performance.now() };
    if (fresh) head.value = fresh;
  });
}

/** Begins a view; what it showed last stays until the first snapshot. @param {string} key @param {string} view */
export function openView(key, view) {
  const old = live.peek();
  if (old.key === key) return;
  if (old.status === 'ready' && old.data) before.set(old.view, { data: old.data, meta: old.meta });
  const same = old.view === view && old.status === 'ready';
  live.value = { key, view, status: same ? 'ready' : 'loading', data: same ? old.data : null, error: null, wrong: null, meta: same ? old.meta : null, version: 0, fresh: false };
}

/** An envelope that a page has fetched by itself: the footer tells of it while that page is open. @param {string} view @param {any} envelope */
export function takeOwn(view, envelope) {
  takeMeta(envelope);
  if (live.peek().view === view) live.value = { ...live.peek(), meta: meta.peek() };
}

/** The server does not take the filter of the view: why. @param {string} key @param {string | null} wrong */
export function refuseFilter(key, wrong) {
  const old = live.peek();
  if (old.key === key && old.wrong !== wrong) live.value = { ...old, wrong };
}

/** @param {string} key @param {string} type @param {any} envelope */
export function take(key, type, envelope) {
  const old = live.peek();
  if (old.key !== key) return;
  batch(() => {
    const epoch = meta.peek()?.epoch;
    takeMeta(envelope);
    const again = epoch !== undefined && epoch !== envelope.epoch;
    const data = type === 'delta' ? withDelta(old.data, envelope) : type === 'append' ? appended(old.data, envelope) : snapshot(old, envelope, again);
    live.value = { ...old, status: 'ready', error: null, data, meta: meta.peek(), version: old.version + 1, fresh: true };
  });
}

/** @param {any} old @param {any} envelope @param {boolean} again */
function snapshot(old, envelope, again) {
  const data = envelope.data;
  if (old.view === 'actors') {
    const rows = new Map(data.rows.map((r) => [r.id, r]));
    for (const row of data.rows) note(row.id, envelope.captured_at, row.rate);
    for (const id of rates.keys()) if (!rows.has(id)) rates.delete(id);
    return { ...data, rows, version: 0 };
  }
  if (old.view === 'events' && old.fresh && !again) return { events: mergeEvents(old.data.events, data.events, eventsMost) };
  return data;
}

/** @param {any} data @param {any} envelope */
function withDelta(data, envelope) {
  if (!data?.rows) return data;
  for (const part of envelope.data.upsert ?? []) {
    if (part.rate !== undefined) note(part.id, envelope.captured_at, part.rate);
  }
  for (const id of envelope.data.remove ?? []) rates.delete(id);
  return { ...data, rows: applyDelta(data.rows, envelope.data), groups: envelope.data.groups ?? data.groups, version: data.version + 1 };
}

/** @param {any} data @param {any} envelope */
const appended = (data, envelope) => ({ events: mergeEvents(data?.events ?? [], envelope.data.events ?? [], eventsMost) });

/** Older events, paged in from before what is known. @param {any[]} events */
export function prependEvents(events) {
  const old = live.peek();
  if (old.view !== 'events' || !old.data) return;
  live.value = { ...old, data: { events: mergeEvents(old.data.events, events, eventsMost) }, version: old.version + 1 };
}

/** @param {string} id @param {number} at @param {number} rate */
function note(id, at, rate) {
  const known = rates.get(id) ?? [];
  const last = known[known.length - 1];
  if (last && at - last[0] < 900) last[1] = rate;
  else known.push([at, rate]);
  if (known.length > ratesMost) known.shift();
  rates.set(id, known);
}

/** A view that cannot be reached shows what it showed last. @param {string} key @param {Failure} error */
export function failView(key, error) {
  const old = live.peek();
  if (old.key !== key) return;
  const last = old.data ? old : error.kind === 'unavailable' ? before.get(old.view) : undefined;
  if (last && error.kind === 'unavailable') live.value = { ...old, status: 'ready', data: last.data, meta: last.meta, error };
  else live.value = { ...old, status: 'error', error };
}

/** @param {string} phase @param {any} [more] */
export function setPhase(phase, more = {}) {
  const old = conn.peek();
  conn.value = { phase, since: old.phase === phase ? old.since : performance.now(), retry_at: 0, ...more };
}

/** Starts the clock of the page. */
export function startTick() {
  return setInterval(() => {
    if (!document.hidden) tick.value += 1;
  }, 1000);
}
