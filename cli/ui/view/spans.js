// Spans as rows of text: the twin of the canvas.
// @ts-check
import { html } from '../vendor/preact.js';
import { clockMs, span } from '../format.js';
import { toward, Link, Rows } from './part.js';
import { State } from './glyph.js';

/** @param {{ of: any[], label: string, actor?: boolean }} props */
export function Spans({ of, label, actor }) {
  const rows = of.map((s) => [
    html`<span class="num dim">${clockMs(s.start)}</span>`,
    html`${s.ok ? null : html`<${State} of="failed" bare=${true} /> `}<a class="thing" href=${toward({ kind: 'span', id: s.id })}>${s.name}</a> <span class="dim">${s.kind}</span>`,
    ...(actor ? [html`<${Link} to=${s.actor} />`] : []),
    s.queued_ms ? html`<span class="dim">${span(s.queued_ms)}</span>` : html`<span class="dim">-</span>`,
    s.end === null ? html`<span class="tone-busy">going</span>` : span(s.end - s.start),
  ]);
  const heads = ['start', 'span', ...(actor ? ['actor'] : []), 'queued', 'took'];
  return html`<${Rows} label=${label} head=${heads} right=${[heads.length - 2, heads.length - 1]} rows=${rows} />`;
}
