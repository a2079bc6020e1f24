// The pointer over the lanes: a click selects, a drag sums an area, a drag with Shift moves, the wheel zooms.
// @ts-check
import { laneAt, spanAt } from './lanes.js';
import { pan, zoom } from './window.js';

const far = 4;

/**
 * @param {HTMLElement} el @param {any} t
 * @param {{ moved: () => void, click: (hit: any) => void, area: (a: any) => void, hover: (hit: any, x: number, y: number) => void, look: (w: any) => void }} tell
 */
export function listenPointer(el, t, tell) {
  /** @type {any} */
  let held = null;
  const timeAt = (/** @type {number} */ x) => timeOf(t, x);
  const at = (e) => {
    const box = el.getBoundingClientRect();
    return { x: e.clientX - box.left, y: e.clientY - box.top + t.scroll };
  };
  const hit = (/** @type {{ x: number, y: number }} */ p) => under(t, p);
  const down = (e) => {
    if (e.button > 1) return;
    const p = at(e);
    held = { ...p, time: timeAt(p.x), view: t.view, pans: e.shiftKey || e.button === 1 || e.pointerType === 'touch', moved: false };
    el.setPointerCapture(e.pointerId);
  };
  const move = (e) => {
    const p = at(e);
    if (!held) return tell.hover(hit(p), p.x, p.y - t.scroll);
    if (!held.moved && Math.abs(p.x - held.x) < far && Math.abs(p.y - held.y) < far) return undefined;
    held.moved = true;
    if (held.pans) return tell.look(pan(held.view, (held.x - p.x) / t.size.width));
    return drag(p);
  };
  const drag = (/** @type {{ x: number, y: number }} */ p) => {
    t.area = areaOf(t, held, p) ?? t.area;
    tell.moved();
  };
  const up = (e) => {
    if (!held) return;
    const was = held;
    held = null;
    if (!was.moved) tell.click(hit(at(e)));
    else if (!was.pans && t.area) tell.area(t.area);
  };
  const wheel = (e) => {
    const side = Math.abs(e.deltaX) > Math.abs(e.deltaY) ? e.deltaX : e.shiftKey ? e.deltaY : 0;
    if (!(e.ctrlKey || e.metaKey || side)) return;
    e.preventDefault();
    if (side) tell.look(pan(t.view, side / 1000));
    else tell.look(zoom(t.view, Math.exp(Math.max(-60, Math.min(60, e.deltaY)) / 150), at(e).x / t.size.width));
  };
  const leave = () => tell.hover(null, 0, 0);
  const all = /** @type {[string, any][]} */ ([['pointerdown', down], ['pointermove', move], ['pointerup', up], ['pointercancel', up], ['pointerleave', leave], ['wheel', wheel]]);
  for (const [name, f] of all) el.addEventListener(name, f, { passive: false });
  return () => {
    for (const [name, f] of all) el.removeEventListener(name, f);
  };
}

/** @param {any} t @param {number} x */
const timeOf = (t, x) => t.view.from + (x / t.size.width) * (t.view.to - t.view.from);

/** The lane and the span at a place. @param {any} t @param {{ x: number, y: number }} p */
function under(t, p) {
  const placed = laneAt(t.placed, p.y);
  if (!placed || !t.chunk) return null;
  const slack = ((t.view.to - t.view.from) / t.size.width) * far;
  return { placed, span: spanAt(placed, t.chunk, timeOf(t, p.x), p.y, slack, t.edge) };
}

/** From where the drag began to here, whole lanes. @param {any} t @param {any} held @param {{ x: number, y: number }} p */
function areaOf(t, held, p) {
  const [a, b] = [held.time, timeOf(t, p.x)];
  const first = laneAt(t.placed, Math.min(held.y, p.y));
  const last = laneAt(t.placed, Math.max(held.y, p.y)) ?? t.placed[t.placed.length - 1];
  return first && last ? { from: Math.min(a, b), to: Math.max(a, b), top: first.top, bottom: last.top + last.height } : null;
}
