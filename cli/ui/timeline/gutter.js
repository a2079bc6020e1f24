// The names of the lanes: a tree of the page's own, beside the canvas.
// @ts-check
import { html, useRef } from '../vendor/preact.js';
import { toward } from '../view/part.js';
import { Shape } from '../view/glyph.js';
import { inView } from './lanes.js';

const narrow = matchMedia('(max-width: 760px)');
/** The end of a name tells more than its beginning. @param {string} s @param {number} most */
const clip = (s, most) => (s.length > most ? `…${s.slice(1 - most)}` : s);
const signs = { node: 'dot', process: 'square', actor: 'circle', link: 'away', device: 'triangle' };

/** @param {{ t: any, fold: (id: string, open: boolean) => void }} props */
export function Gutter({ t, fold }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const at = useRef(/** @type {string | null} */ (null));
  const seen = inView(t.placed, t.scroll - 120, t.size.height + 240);
  const active = seen.some((p) => p.lane.id === at.current) ? at.current : seen[0]?.lane.id;
  const key = (/** @type {KeyboardEvent} */ e) => {
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
  const key = (/** @type {KeyboardEvent} */ e) => {
    if (e.key !== 'Enter') return;
    e.preventDefault();
    e.stopPropagation();
    go();
  };
  return html`<div class="lane ${lane.kind}" role="treeitem" aria-level=${lane.depth + 1} aria-expanded=${opens ? String(lane.open) : undefined} aria-selected="false" tabindex=${active ? 0 : -1} data-lane=${lane.id}
    style=${{ top: `${top}px`, height: `${height}px`, paddingLeft: `${narrow.matches ? 5 + lane.depth * 6 : 8 + lane.depth * 12}px` }} onClick=${go} onKeyDown=${key} onFocus=${take} title=${lane.name}>
    <span class="fold" onClick=${(/** @type {Event} */ e) => { if (!opens) return; e.stopPropagation(); fold(lane.id, !lane.open); }}>${opens ? html`<${Shape} of=${lane.open ? 'down' : 'right'} size=${8} />` : null}</span>
    <span class="dim sign"><${Shape} of=${signs[lane.kind] ?? 'circle'} size=${8} /></span><span class="text">${clip(lane.name, narrow.matches ? 9 : 24)}</span>${opens && !lane.open ? html`<span class="dim num">${lane.children}</span>` : null}</div>`;
}
