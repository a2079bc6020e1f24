// The window of time that is looked at: zoomed, moved, fitted. Pure.
// @ts-check
import { count, when } from '../format.js';
/** @typedef {{ from: number, to: number }} Window */

/** The narrowest window, 20 µs, and the widest, a week, in milliseconds. */
const least = 0.02;
const most = 604_800_000;

/** Makes it narrower (factor < 1) or wider around a place in it. @param {Window} w @param {number} factor @param {number} around a share of the window @returns {Window} */
export function zoom(w, factor, around = 0.5) {
  const size = Math.max(least, Math.min(most, (w.to - w.from) * factor));
  const fixed = w.from + (w.to - w.from) * around;
  return { from: fixed - size * around, to: fixed + size * (1 - around) };
}

/** Moves it by a share of itself. @param {Window} w @param {number} share @returns {Window} */
export function pan(w, share) {
  const by = (w.to - w.from) * share;
  return { from: w.from + by, to: w.to + by };
}

/** Puts a time in the middle. @param {Window} w @param {number} at @returns {Window} */
export function centre(w, at) {
  const half = (w.to - w.from) / 2;
  return { from: at - half, to: at + half };
}

/** Shows a span with some room at both sides. @param {number} from @param {number} to @returns {Window} */
export function fit(from, to) {
  const room = Math.max((to - from) * 0.15, least);
  return { from: from - room, to: to + room };
}

/** Where the lines of the ruler stand: a round step so that lines are about 110 px apart. @param {Window} w @param {number} px */
export function ticks(w, px) {
  const raw = ((w.to - w.from) / Math.max(1, px)) * 110;
  const step = steps.find((s) => s >= raw) ?? steps[steps.length - 1];
  const out = [];
  for (let t = Math.ceil(w.from / step) * step; t < w.to && out.length < 200; t += step) out.push(t);
  return { step, at: out };
}

const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 86_400_000];

/**
 * Whether what was fetched still serves: it covers the window and is about as fine as the window asks for.
 * @param {{ from: number, to: number, px: number } | null} has @param {Window} w @param {number} px
 */
export function serves(has, w, px) {
  if (!has || has.from > w.from || has.to < w.to) return false;
  const finer = ((w.to - w.from) / px) / ((has.to - has.from) / has.px);
  return finer > 0.55 && finer < 1.9;
}

/**
 * What is said where a window reaches back to before what is kept.
 * @param {{ to: number, kept_from?: number | null, forgotten?: number } | null} chunk @param {number} from where the window begins
 */
export function keptSince(chunk, from) {
  if (!chunk?.kept_from || from >= chunk.kept_from) return '';
  const since = `spans are kept since ${when(chunk.kept_from, chunk.to)}`;
  return chunk.forgotten ? `${since}, ${count(chunk.forgotten)} older ones are forgotten` : since;
}
