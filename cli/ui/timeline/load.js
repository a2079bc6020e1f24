// Asks the daemon for the lanes of the window that is looked at, again and again while it is live.
// @ts-check
import { aborted, explain, get } from '../api.js';
import { system } from '../prefs.js';
import { paused, setPhase, takeOwn } from '../store.js';
import { openByItself, settle, withoutSystem } from './lanes.js';
import { fullOf } from './lod.js';
import { serves } from './window.js';

const whileFollowing = 300;
const whileGrowing = 1000;

/**
 * @param {any} t what is looked at @param {() => void} changed
 */
export function loader(t, changed) {
  /** @type {AbortController | null} */
  let control = null;
  let timer = 0;
  let failures = 0;
  let ended = false;

  /** @param {boolean} [anew] other lanes are wanted, even while it is paused */
  async function load(anew = false) {
    clearTimeout(timer);
    control?.abort();
    if (ended || document.hidden || t.size.width < 10 || (!anew && paused.peek() && t.follow && t.chunk)) return;
    const mine = new AbortController();
    control = mine;
    try {
      const chunk = await ask(t, mine.signal);
      if (ended) return;
      failures = 0;
      accept(t, chunk);
      changed();
      again();
    } catch (error) {
      if (!aborted(error) && !ended) lost(explain(error));
    } finally {
      if (control === mine) control = null;
    }
  }

  function again() {
    if (t.grown) {
      t.grown = false;
      timer = Number(setTimeout(() => load(true), 0));
    } else if (paused.peek()) return;
    else if (t.follow) timer = Number(setTimeout(load, whileFollowing));
    else if (t.view.to > t.chunk.captured_at) timer = Number(setTimeout(load, whileGrowing));
  }

  /** @param {import('../types').Failure} error */
  function lost(error) {
    const wait = Math.min(8000, 500 * 2 ** failures);
    failures += 1;
    say(t, error, wait);
    changed();
    timer = Number(setTimeout(load, wait));
  }

  /** After the window moved: only what is not there is asked for. */
  function poke() {
    if (control && t.follow) return;
    if (t.follow || serves(t.chunk, t.view, t.size.width)) return;
    clearTimeout(timer);
    timer = Number(setTimeout(load, 70));
  }

  const stop = () => {
    ended = true;
    clearTimeout(timer);
    control?.abort();
  };
  return { load, poke, stop };
}

/** @param {any} t @param {import('../types').Failure} error @param {number} wait */
function say(t, error, wait) {
  t.error = error;
  if (error.kind === 'unauthorized') setPhase('locked');
  else setPhase(['invalid', 'unknown', 'forbidden'].includes(error.kind) ? 'failed' : 'stale', { retry_at: performance.now() + wait, error });
}

/** @param {any} t @param {AbortSignal} signal */
async function ask(t, signal) {
  const asked = windowOf(t);
  const open = t.asked && !t.open.size ? '-' : [...t.open].join(',');
  const envelope = await get('inspect/timeline', { ...asked, open, filter: t.filter || undefined }, signal);
  // While it is paused the moment that is shown stays the same.
  if (!paused.peek() || !t.chunk) takeOwn('timeline', envelope);
  setPhase(paused.peek() ? 'paused' : 'live');
  const { captured_at, kept_from, forgotten, data } = envelope;
  return { ...data, px: asked.px, captured_at, kept_from, forgotten };
}

/** A little more than is seen, so that small moves find it there. @param {any} t */
function windowOf(t) {
  const size = t.view.to - t.view.from;
  const room = t.follow ? 0.08 : 0.5;
  const from = t.view.from - size * room;
  const to = t.follow ? t.view.to : t.view.to + size * room;
  return { from, to, px: Math.round(t.size.width * ((to - from) / size)) };
}

/** @param {any} t @param {any} chunk */
function accept(t, chunk) {
  t.hides = system.peek() === 'off' && chunk.lanes.some((/** @type {any} */ lane) => lane.system);
  if (t.hides) chunk.lanes = withoutSystem(chunk.lanes);
  chunk.full = fullOf(chunk.lanes);
  t.kept = settle(chunk.lanes, t.kept);
  t.chunk = chunk;
  t.error = null;
  if (t.filter) return narrowed(t, chunk);
  if (t.asked) return;
  const before = t.open.size;
  for (const lane of chunk.lanes) if (lane.open) t.open.add(lane.id);
  openByItself(chunk.lanes, t.open);
  t.grown = t.open.size > before;
}

/** Only lanes whose name or id has every word; all that could hold such lanes is opened. @param {any} t @param {any} chunk */
function narrowed(t, chunk) {
  const words = t.filter.replaceAll('"', '').toLowerCase().split(/\s+/);
  const before = t.open.size;
  for (const lane of chunk.lanes) if (lane.children && lane.kind !== 'actor') t.open.add(lane.id);
  t.grown = t.open.size > before;
  const has = (lane) => words.every((w) => lane.name.toLowerCase().includes(w) || lane.subject?.id.toLowerCase() === w);
  chunk.lanes = chunk.lanes.filter(has).map((lane) => ({ ...lane, depth: 0 }));
}

