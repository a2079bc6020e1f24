// Draws the lanes that are seen onto the canvas.
// @ts-check
import { count } from '../format.js';
import { rowStep } from './lanes.js';
import { bars, marks } from './lod.js';
import { colourOf, font, ink, paint } from './paint.js';
/** @typedef {import('./lanes.js').Placed} Placed @typedef {import('../types').Chunk} Chunk */
/** @typedef {{ c: CanvasRenderingContext2D, p: Record<string, string>, from: number, scale: number, width: number, height: number, scroll: number, chunk: Chunk, edge: number, selected: string | null, critical: Set<string> | null, hover: string | null }} Scene */

/**
 * @param {CanvasRenderingContext2D} c @param {any} t what is looked at @param {Placed[]} seen
 * @returns {Scene}
 */
export function draw(c, t, seen) {
  const { width, height } = t.size;
  const p = paint();
  c.fillStyle = p.bg;
  c.fillRect(0, 0, width, height);
  c.font = font;
  c.textBaseline = 'middle';
  /** @type {Scene} */
  const s = { ...t, c, p, from: t.view.from, scale: width / (t.view.to - t.view.from), width, height };
  for (const at of seen) lane(s, at);
  unknown(s, t);
  forgotten(s, t);
  if (t.area) area(s, t.area);
  return s;
}

/** @param {Scene} s @param {Placed} at */
function lane(s, at) {
  const y = at.top - s.scroll;
  const { c, p } = s;
  if (at.lane.kind === 'node') {
    c.fillStyle = p.raised;
    c.fillRect(0, y, s.width, at.height);
  }
  c.fillStyle = p.line;
  c.fillRect(0, y + at.height - 1, s.width, 1);
  if (at.lane.spans) spans(s, at, y);
  else density(s, at, y);
  for (const gap of at.lane.gaps ?? []) hole(s, at, y, gap);
}

/** @param {Scene} s @param {Placed} at @param {number} y */
function spans(s, at, y) {
  const { c, p, chunk } = s;
  const { wide, columns } = marks(at.lane, chunk, s.from, s.scale, s.width, s.edge);
  for (const m of columns) {
    c.globalAlpha = (s.critical ? 0.25 : 1) * (0.55 + m.share * 0.37);
    c.fillStyle = m.failed ? p.failed : colourOf(p, chunk.kinds[m.kind]);
    c.fillRect(m.x, y + 4 + Math.min(5, m.row) * rowStep, m.w, rowStep - 2);
  }
  for (const { span, x, w } of wide) {
    const left = Math.max(-2, x);
    const right = Math.min(s.width + 2, x + w);
    const top = y + 4 + Math.min(5, span[6]) * rowStep;
    const on = !s.critical || s.critical.has(span[0]);
    c.globalAlpha = on ? (span[2] === null ? 0.72 : 0.92) : 0.18;
    c.fillStyle = colourOf(p, chunk.kinds[span[3]]);
    c.fillRect(left, top, Math.max(1, right - left - 0.5), rowStep - 2);
    c.globalAlpha = 1;
    if (!span[5]) failed(s, left, top, right - left);
    if (right - left > 34 && on) label(s, chunk.names[span[4]] ?? '', left, top, right - left, ink(colourOf(p, chunk.kinds[span[3]])));
    if (span[0] === s.selected || span[0] === s.hover || (s.critical && on)) outline(s, left, top, right - left, span[0] === s.selected);
  }
  c.globalAlpha = 1;
}

/** @param {Scene} s @param {number} x @param {number} y @param {number} w */
function failed(s, x, y, w) {
  const { c, p } = s;
  c.fillStyle = p.failed;
  c.fillRect(x, y, 3, rowStep - 2);
  c.fillRect(x, y + rowStep - 4, w, 2);
  if (w < 12) return;
  c.strokeStyle = p.text;
  c.lineWidth = 1.5;
  c.beginPath();
  c.moveTo(x + w - 10, y + 4);
  c.lineTo(x + w - 5, y + 9);
  c.moveTo(x + w - 5, y + 4);
  c.lineTo(x + w - 10, y + 9);
  c.stroke();
}

/** @param {Scene} s @param {string} text @param {number} x @param {number} y @param {number} w @param {string} colour */
function label(s, text, x, y, w, colour) {
  const room = Math.floor((w - 10) / 6.2);
  if (room < 2) return;
  s.c.fillStyle = colour;
  s.c.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, Math.max(x, 0) + 5, y + rowStep / 2 - 0.5);
}

/** @param {Scene} s @param {number} x @param {number} y @param {number} w @param {boolean} strong */
function outline(s, x, y, w, strong) {
  s.c.strokeStyle = s.p.text;
  s.c.lineWidth = strong ? 2 : 1;
  s.c.strokeRect(x - 0.5, y - 0.5, w, rowStep - 1);
}

/** @param {Scene} s @param {Placed} at @param {number} y */
function density(s, at, y) {
  const { c, p } = s;
  const room = Math.min(at.height - 5, 24);
  const base = y + at.height - 3 - Math.max(0, (at.height - 5 - room) / 2);
  c.fillStyle = p.k2;
  for (const b of bars(at.lane, s.chunk, s.from, s.scale, s.width)) {
    const h = Math.max(1, b.share * room);
    c.globalAlpha = s.critical ? 0.2 : 0.35 + 0.55 * b.share;
    c.fillRect(b.x, base - h, b.w + 0.5, h);
    if (!b.failed) continue;
    c.globalAlpha = 1;
    c.fillStyle = p.failed;
    c.fillRect(b.x, base - room - 1, Math.max(2, b.w), 4);
    c.fillStyle = p.k2;
  }
  c.globalAlpha = 1;
}

/** What was dropped is a hole that says so. @param {Scene} s @param {Placed} at @param {number} y @param {[number, number, number]} gap */
function hole(s, at, y, [from, to, dropped]) {
  const { c, p } = s;
  const x = (s.chunk.from + from - s.from) * s.scale;
  const right = Math.min(s.width, x + Math.max(2, (to - from) * s.scale));
  const left = Math.max(0, x);
  if (right <= left) return;
  hatch(s, left, y + 1, right - left, at.height - 3, 1);
  c.fillStyle = p.text;
  const text = `${count(dropped)} events dropped here`;
  if (c.measureText(text).width + 12 < right - left) c.fillText(text, left + 6, y + at.height / 2);
}

/**
 * Slanted lines: nothing is known of this.
 * @param {Scene} s @param {number} x @param {number} y @param {number} w @param {number} h @param {number} cover how much of what lies below is hidden
 */
function hatch({ c, p }, x, y, w, h, cover) {
  c.save();
  c.beginPath();
  c.rect(x, y, w, h);
  c.clip();
  c.globalAlpha = cover;
  c.fillStyle = p.track;
  c.fillRect(x, y, w, h);
  c.strokeStyle = p.strong;
  c.lineWidth = 1;
  c.beginPath();
  for (let i = x - h; i < x + w; i += 7) {
    c.moveTo(i, y + h);
    c.lineTo(i + h, y);
  }
  c.globalAlpha = 0.5;
  c.stroke();
  c.restore();
}

/** What is kept no more, over all lanes; a span that began then and went on later shows through. @param {Scene} s @param {any} t */
function forgotten(s, t) {
  const { c, p, chunk } = s;
  const w = Math.min(s.width, ((chunk.kept_from ?? 0) - s.from) * s.scale);
  const h = Math.min(s.height, t.height - s.scroll);
  if (w <= 0) return;
  hatch(s, 0, 0, w, h, 0.6);
  c.fillStyle = p.strong;
  if (w < s.width) c.fillRect(w - 1, 0, 1, h);
  const text = `${count(chunk.forgotten ?? 0)} older spans are forgotten`;
  const wide = c.measureText(text).width + 16;
  if (!chunk.forgotten || wide + 8 > w) return;
  c.fillStyle = p.bg;
  c.fillRect((w - wide) / 2, h / 2 - 10, wide, 20);
  c.fillStyle = p.text;
  c.fillText(text, (w - wide) / 2 + 8, h / 2);
}

/** What was not asked for yet, and what has not happened yet. @param {Scene} s @param {any} t */
function unknown(s, t) {
  const { c, p } = s;
  const now = (t.edge - s.from) * s.scale;
  const has = [(s.chunk.from - s.from) * s.scale, (s.chunk.to - s.from) * s.scale];
  c.fillStyle = p.track;
  c.globalAlpha = 0.5;
  if (has[0] > 0) c.fillRect(0, 0, Math.min(s.width, has[0]), s.height);
  if (Math.min(now, has[1]) < s.width) c.fillRect(Math.max(0, Math.min(now, has[1])), 0, s.width, s.height);
  c.globalAlpha = 1;
  if (now < 0 || now > s.width) return;
  c.fillStyle = p.accent;
  c.fillRect(Math.round(now), 0, 1, s.height);
}

/** @param {Scene} s @param {{ from: number, to: number, top: number, bottom: number }} a */
function area(s, a) {
  const x = (a.from - s.from) * s.scale;
  const w = (a.to - a.from) * s.scale;
  s.c.fillStyle = s.p.accent;
  s.c.globalAlpha = 0.13;
  s.c.fillRect(x, a.top - s.scroll, w, a.bottom - a.top);
  s.c.globalAlpha = 1;
  s.c.strokeStyle = s.p.accent;
  s.c.lineWidth = 1;
  s.c.strokeRect(x + 0.5, a.top - s.scroll + 0.5, w, a.bottom - a.top - 1);
}
