// Arrows of the selected span: from its cause, to its effects; nothing further.
// @ts-check
import { find, rowStep } from './lanes.js';
import { font } from './paint.js';
/** @typedef {import('./lanes.js').Placed} Placed @typedef {import('../types').Span} Span */

/**
 * @param {import('./draw.js').Scene} s @param {Placed[]} placed @param {{ span: Span, cause: Span | null, effects: Span[] }} of
 * */
export function flows(s, placed, of) {
  const { span, cause } = of;
  if (cause) {
    const from = place(s, placed, cause, cause.start);
    const to = place(s, placed, span, span.start);
    if (from.there) arrow(s, from, to, cause.start > span.start);
    else if (to.there) aside(s, to, -1, `from ${cause.actor.name} (folded)`);
  }
  const folded = [];
  for (const effect of of.effects.filter((e) => e.actor.id !== span.actor.id)) {
    const from = place(s, placed, span, Math.min(effect.start, span.end ?? s.edge));
    const to = place(s, placed, effect, effect.start);
    if (to.there && from.there) arrow(s, from, to, span.start > effect.start);
    else if (from.there) folded.push({ from, effect });
  }
  const names = [...new Set(folded.map((f) => f.effect.actor.name))];
  if (names.length) aside(s, folded[0].from, 1, `to ${names[0]}${names.length > 1 ? ` and ${names.length - 1} more` : ''} (folded)`);
}

/** A short line to a name, for what has no lane here. @param {import('./draw.js').Scene} s @param {any} at @param {number} side @param {string} text */
function aside({ c, p }, at, side, text) {
  c.strokeStyle = p.text;
  c.lineWidth = 1.3;
  c.setLineDash([]);
  c.beginPath();
  c.moveTo(at.x, at.y);
  c.lineTo(at.x + side * 26, at.y - 14);
  c.stroke();
  c.font = font;
  const wide = c.measureText(text).width + 8;
  const x = at.x + side * 26 - (side < 0 ? wide : 0);
  c.fillStyle = p.bg;
  c.fillRect(x, at.y - 23, wide, 16);
  c.fillStyle = p.text;
  c.fillText(text, x + 4, at.y - 15);
}

/** Where a span stands; where its lane is folded, the lane of its actor's parent, or nowhere. @param {import('./draw.js').Scene} s @param {Placed[]} placed @param {Span} span @param {number} at */
function place(s, placed, span, at) {
  const x = (at - s.from) * s.scale;
  const found = find(placed, span.id);
  if (found) return { x, y: found.placed.top - s.scroll + 4 + found.span[6] * rowStep + rowStep / 2 - 1, there: true };
  const lane = placed.find((p) => p.lane.subject?.kind === 'actor' && p.lane.subject.id === span.actor.id);
  if (lane) return { x, y: lane.top - s.scroll + lane.height / 2, there: true };
  return { x, y: -1, there: false };
}

/** Dashed when it goes backwards in time: the clocks of two nodes differ. @param {import('./draw.js').Scene} s @param {any} a @param {any} b @param {boolean} backwards */
function arrow({ c, p }, a, b, backwards) {
  c.strokeStyle = p.text;
  c.fillStyle = p.text;
  c.lineWidth = 1.3;
  c.setLineDash(backwards ? [4, 3] : []);
  const bend = Math.max(24, Math.abs(b.x - a.x) / 3);
  c.beginPath();
  c.moveTo(a.x, a.y);
  c.bezierCurveTo(a.x + bend, a.y, b.x - bend, b.y, b.x, b.y);
  c.stroke();
  c.setLineDash([]);
  c.beginPath();
  c.moveTo(b.x, b.y);
  c.lineTo(b.x - 7, b.y - 3.5);
  c.lineTo(b.x - 7, b.y + 3.5);
  c.fill();
}
