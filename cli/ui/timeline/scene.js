// What is looked at: the window, the lanes, the selection; and the loop that draws it when something changed.
// @ts-check
import { conn, head, instant } from '../store.js';
import { draw } from './draw.js';
import { flows } from './flows.js';
import { inView, layout, restHeight } from './lanes.js';
import { prepare } from './paint.js';
import { ruler } from './ruler.js';

/** The window when nobody asked for another, in milliseconds: no longer than a recording is. */
export function usual() {
  const r = head.peek()?.replay;
  return r ? Math.max(1000, Math.min(30_000, r.to - r.from)) : 30_000;
}

/** @returns {any} */
export function makeScene() {
  const to = instant();
  return {
    view: { from: to - usual(), to }, follow: true, plain: true, length: usual(), filter: '', asked: false, grown: false,
    chunk: null, placed: [], rows: new Map(), height: 0, left: 0, kept: new Map(), hides: false, open: new Set(),
    edge: to, size: { width: 0, height: 0 }, scroll: 0, error: null,
    selected: null, detail: null, critical: null, hover: null, area: null, dirty: true, frames: 0,
  };
}
/** @typedef {ReturnType<typeof makeScene>} Scene */

/** Lays the lanes out again after something came. @param {Scene} t */
export function relay(t) {
  if (!t.chunk) return;
  const { placed, height } = layout(t.chunk.lanes, t.rows);
  t.placed = placed;
  t.left = t.chunk.lanes_left_out ?? 0;
  t.height = height + (t.left ? restHeight : 0);
  t.dirty = true;
}

/** @param {Scene} t @param {HTMLCanvasElement} body @param {HTMLCanvasElement} top */
function frame(t, body, top) {
  const moving = t.follow && conn.peek().phase === 'live' && !still.matches;
  t.edge = instant();
  if (t.follow && t.plain) t.length = usual();
  if (t.follow && (moving || t.dirty)) t.view = { from: t.edge - t.length, to: t.edge };
  if (!t.dirty && !moving) return;
  t.dirty = false;
  t.frames += 1;
  if (t.size.width < 2) return;
  ruler(top, t.view, t.size.width, t.area);
  const c = prepare(body, t.size.width, t.size.height);
  if (!t.chunk) return;
  const s = draw(c, t, inView(t.placed, t.scroll, t.size.height));
  if (t.detail) flows(s, t.placed, t.detail);
}

/** Draws whenever the browser does, as long as it is not ended. @param {Scene} t @param {() => [HTMLCanvasElement | null, HTMLCanvasElement | null]} canvases */
export function loop(t, canvases) {
  let going = true;
  const next = () => {
    if (!going) return;
    const [body, top] = canvases();
    if (body && top) frame(t, body, top);
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
  return () => {
    going = false;
  };
}

const still = matchMedia('(prefers-reduced-motion: reduce)');
