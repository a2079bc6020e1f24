// The one stream of this page: it follows the open view, lets go when hidden or paused, and comes back by itself.
// @ts-check
import { useEffect } from './vendor/preact.js';
import { aborted, explain, failure, get, url } from './api.js';
import { parser } from './sse.js';
import { failView, live, openView, paused, refuseFilter, setPhase, take } from './store.js';

/** The daemon says something every 5 s; after this long without a byte the stream is taken for dead. */
const silenceMost = 12_000;
const waits = [500, 1000, 2000, 4000, 8000];

/** @typedef {{ key: string, params: Record<string, any>, instead?: Record<string, any> }} Followed `instead` is asked for where the filter is refused */
/** @type {Followed | null} */
let wanted = null;
/** What the view was asked for when it last answered. @type {Record<string, any> | null} */
let good = null;
/** @type {AbortController | null} */
let current = null;
let failures = 0;
let lastId = '';
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

/** Follows this view until another is asked for. @param {Record<string, any>} params */
function watch(params) {
  const key = JSON.stringify(params);
  if (wanted?.key === key) return;
  wanted = { key, params };
  openView(key, params.view);
  failures = 0;
  lastId = '';
  restart();
}

/** A page that fetches by itself lets the stream go. @param {string} view */
export function unwatch(view) {
  wanted = null;
  stop();
  openView(view, view);
}

export function retry() {
  failures = 0;
  const old = live.peek();
  if (old.status === 'error') live.value = { ...old, status: 'loading', error: null };
  restart();
}

/** @param {boolean} on */
export function pause(on) {
  paused.value = on;
  restart();
}

function stop() {
  clearTimeout(timer);
  current?.abort();
  current = null;
}

function restart() {
  stop();
  if (document.hidden) return setPhase('hidden');
  if (paused.peek()) {
    setPhase('paused');
    return wanted && !live.peek().fresh ? once(wanted) : undefined;
  }
  if (wanted) run(wanted);
}

/** A page that is opened, or another filter that is given, while paused is shown as it is at that moment. @param {Followed} view */
function once(view) {
  return get('inspect/view', view.instead ?? view.params).then((envelope) => answered(view, 'snapshot', envelope), (error) => {
    const why = explain(error);
    if (!withoutFilter(view, why)) failView(view.key, why);
    else once(view);
  });
}

/** @param {Followed} view @param {string} type @param {any} envelope */
function answered(view, type, envelope) {
  if (!view.instead) good = view.params;
  take(view.key, type, envelope);
}

/** A filter that the server refuses is told beside its box, and the view goes on with the one before. @param {Followed} view @param {import('./types').Failure} error */
function withoutFilter(view, error) {
  if (error.kind !== 'invalid' || view.instead || !view.params.filter) return false;
  view.instead = good?.view === view.params.view ? { ...view.params, filter: good?.filter } : { ...view.params, filter: view.params.filter.includes('system:any') ? 'system:any' : undefined };
  refuseFilter(view.key, error.why);
  return true;
}

/** @param {Followed} view */
async function run(view) {
  const control = new AbortController();
  current = control;
  if (failures === 0) setPhase('connecting');
  try {
    const headers = new Headers({ accept: 'text/event-stream' });
    if (lastId) headers.set('last-event-id', lastId);
    const response = await fetch(url('inspect/stream', view.instead ?? view.params), { signal: control.signal, headers, cache: 'no-store' });
    if (!response.ok || !response.body) throw await failure(response);
    await read(response.body, view, control);
    throw explain(null);
  } catch (error) {
    if (current === control) lost(view, aborted(error) ? explain(null) : explain(error));
  }
}

/** @param {ReadableStream<Uint8Array>} body @param {Followed} view @param {AbortController} control */
async function read(body, view, control) {
  const text = new TextDecoder();
  const feed = parser((event) => {
    lastId = event.id || lastId;
    answered(view, event.type, JSON.parse(event.data));
    failures = 0;
    setPhase('live');
  });
  const reader = body.getReader();
  let silent = setTimeout(() => control.abort(), silenceMost);
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done || current !== control) return;
      clearTimeout(silent);
      silent = setTimeout(() => control.abort(), silenceMost);
      feed(text.decode(value, { stream: true }));
    }
  } finally {
    clearTimeout(silent);
    reader.cancel().catch(() => {});
  }
}

/** @param {Followed} view @param {import('./types').Failure} error */
function lost(view, error) {
  current = null;
  if (withoutFilter(view, error)) return restart();
  failView(view.key, error);
  if (error.kind === 'unauthorized') return setPhase('locked');
  if (['invalid', 'unknown', 'forbidden'].includes(error.kind)) return setPhase('failed', { error });
  const wait = error.retry_s ? error.retry_s * 1000 : waits[Math.min(failures, waits.length - 1)];
  failures += 1;
  setPhase('stale', { retry_at: performance.now() + wait, error });
  timer = setTimeout(restart, wait);
}

/** Hidden pages let their connection go: a browser gives an origin only six of them. */
export function listenVisibility() {
  document.addEventListener('visibilitychange', restart);
  addEventListener('pagehide', stop);
  addEventListener('online', retry);
}

/** Follows a view while a component is shown. @param {Record<string, any>} params */
export function useView(params) {
  const key = JSON.stringify(params);
  useEffect(() => watch(params), [key]);
  const is = live.value;
  return is.key === key ? is : { ...is, key, status: is.view === params.view ? is.status : 'loading', data: is.view === params.view ? is.data : null };
}
