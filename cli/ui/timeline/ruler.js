// The ruler over the lanes: times that are round, and how long the window is.
// @ts-check
import { clock, clockMs, span } from '../format.js';
import { font, paint, prepare } from './paint.js';
import { ticks } from './window.js';

/** @param {HTMLCanvasElement} canvas @param {{ from: number, to: number }} view @param {number} width @param {{ from: number, to: number } | null} area */
export function ruler(canvas, view, width, area) {
  const c = prepare(canvas, width, 24);
  const p = paint();
  const scale = width / (view.to - view.from);
  c.fillStyle = p.bg;
  c.fillRect(0, 0, width, 24);
  c.font = font;
  c.textBaseline = 'middle';
  const { step, at } = ticks(view, width);
  for (const t of at) {
    const x = Math.round((t - view.from) * scale);
    c.fillStyle = p.line;
    c.fillRect(x, 14, 1, 10);
    c.fillStyle = p.dim;
    c.fillText(said(t, step), x + 4, 12);
  }
  c.fillStyle = p.line;
  c.fillRect(0, 23, width, 1);
  if (!area) return;
  const [x, w] = [(area.from - view.from) * scale, (area.to - area.from) * scale];
  const text = span(area.to - area.from);
  c.fillStyle = p.accent;
  c.fillRect(x, 20, w, 3);
  const wide = c.measureText(text).width + 10;
  const middle = Math.max(0, Math.min(width - wide, x + w / 2 - wide / 2));
  c.fillRect(middle, 2, wide, 17);
  c.fillStyle = p.bg;
  c.fillText(text, middle + 5, 11);
}

/** Whole seconds as a clock, finer ones with what follows the second. @param {number} t @param {number} step */
function said(t, step) {
  if (step >= 1000) return clock(t);
  if (step >= 1) return clockMs(t).slice(6);
  const ms = t % 1000;
  return `${ms.toFixed(step >= 0.1 ? 1 : step >= 0.01 ? 2 : 3)} ms`;
}
