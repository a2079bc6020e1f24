// The names of the lanes: a tree of the page's own, beside the canvas.
// @ts-check
import { html, useRef } from '../vendor/preact.js';
import { count } from '../format.js';
import { narrow } from '../prefs.js';
import { toward } from '../view/part.js';
import { Shape } from '../view/glyph.js';
import { inView, restHeight } from './lanes.js';
import { font } from './paint.js';

/** How far names begin from the left. @param {number} depth */
const indent = (depth) => (narrow() ? 4 + depth * 5 : 8 + depth * 12);
const signs = { node: 'dot', process: 'square', actor: 'circle', link: 'away', device: 'triangle' };

/** @param {{ t: any, fold: (id: string, open: boolean) => void }} props */
export function Gutter({ t, fold }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const at = useRef(/** @type {string | null} */ (null));
  const seen = inView(t.placed, t.scroll - 120, t.size.height + 240);
  const active = seen.some((p) => p.lane.id === at.current) ? at.current : seen[0]?.lane.id;
  const key = (e) => {
    const i = t.placed.findIndex((p) => p.lane.id === active);
    const lane = t.placed[i]?.lane;
    const to = { ArrowDown: i + 1, j: i + 1, ArrowUp: i - 1, k: i - 1, Home: 0, End: t.placed.length - 1 }[e.key];
    if (to !== undefined) walk(to);
    else if (lane && ['ArrowRight', 'l'].includes(e.key)) fold(lane.id, true);
    else if (lane && ['ArrowLeft', 'h'].includes(e.key)) fold(lane.id, false);
    else return;
    e.preventDefault();
    e.stopPropagation();
  };
  const walk = (/** @type {number} */ to) => {
    const next = t.placed[Math.max(0, Math.min(t.placed.length - 1, to))];
    if (!next) return;
    at.current = next.lane.id;
    const el = box.current?.querySelector(`[data-lane="${CSS.escape(next.lane.id)}"]`);
    el?.setAttribute('tabindex', '0');
    /** @type {HTMLElement | null} */ (el)?.focus();
  };
  return html`<div class="gutter" role="tree" aria-label="Lanes" ref=${box} onKeyDown=${key} style=${{ height: `${t.height}px` }}>
    ${seen.map((p) => html`<${Name} key=${p.lane.id} of=${p} active=${p.lane.id === active} fold=${fold} take=${() => { at.current = p.lane.id; }} />`)}</div>`;
}

/** @param {any} props */
function Name({ of: { lane, top, height }, active, fold, take }) {
  const opens = lane.children > 0;
  const go = () => {
    take();
    if (lane.subject) location.hash = toward(lane.subject);
    else if (opens) fold(lane.id, !lane.open);
  };
  const key = (e) => {
    if (e.key !== 'Enter') return;
    e.preventDefault();
    e.stopPropagation();
    go();
  };
  return html`<div class="lane ${lane.kind}" role="treeitem" aria-level=${lane.depth + 1} aria-expanded=${opens ? String(lane.open) : undefined} aria-selected="false" tabindex=${active ? 0 : -1} data-lane=${lane.id}
    style=${{ top: `${top}px`, height: `${height}px`, paddingLeft: `${indent(lane.depth)}px` }} onClick=${go} onKeyDown=${key} onFocus=${take} title=${lane.name}>
    <span class="fold" onClick=${(e) => { if (!opens) return; e.stopPropagation(); fold(lane.id, !lane.open); }}>${opens ? html`<${Shape} of=${lane.open ? 'down' : 'right'} size=${8} />` : null}</span>
    <span class="dim sign"><${Shape} of=${signs[lane.kind] ?? 'circle'} size=${8} /></span><span class="text">${lane.name}</span>${opens && !lane.open ? html`<span class="dim num">${lane.children}</span>` : null}</div>`;
}

/** How wide names are, asked of a canvas that nobody sees. @type {CanvasRenderingContext2D | null} */
let ruler = null;
/** @type {Map<string, number>} */
const widths = new Map();

/** @param {string} name */
function measure(name) {
  const known = widths.get(name);
  if (known !== undefined) return known;
  ruler ??= document.createElement('canvas').getContext('2d');
  if (ruler) ruler.font = `600 ${font.replace('11px', '12px')}`;
  const wide = Math.ceil(ruler?.measureText(name).width ?? name.length * 7);
  if (widths.size > 5000) widths.clear();
  widths.set(name, wide);
  return wide;
}

/**
 * The width of the gutter: what somebody has dragged it to, otherwise what the longest name asks for, within limits.
 * It grows while lanes come and does not shrink when they go.
 * @param {any} t @param {string} dragged
 */
export function widthOf(t, dragged) {
  const [least, most] = narrow() ? [104, Math.round(innerWidth * 0.42)] : [150, Math.round(Math.min(380, innerWidth * 0.34))];
  if (dragged && !narrow()) return Math.max(90, Math.min(Number(dragged), Math.round(innerWidth * 0.6)));
  const asked = Math.max(0, ...t.placed.map((/** @type {any} */ p) => indent(p.lane.depth) + measure(p.lane.name) + 30 + (p.lane.children && !p.lane.open ? 26 : 0)));
  t.gutter = Math.max(t.gutter ?? 0, Math.max(least, Math.min(most, asked)));
  return Math.min(most, t.gutter);
}

/** The last row: how many lanes did not find room. @param {{ t: any }} props */
export function Rest({ t }) {
  if (!t.left) return null;
  return html`<p class="rest dim" style=${{ top: `${t.height - restHeight}px` }}>${count(t.left)} less busy ${t.left === 1 ? 'lane is' : 'lanes are'} left out</p>`;
}
