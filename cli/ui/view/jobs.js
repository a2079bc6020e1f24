// Pieces of a job: the bar of its phases, and the table that says why it waits.
// @ts-check
import { html } from '../vendor/preact.js';
import { age, plural, span } from '../format.js';
import { now } from '../store.js';
import { Shape } from './glyph.js';
import { Link, Rows } from './part.js';

const tones = { queued: 'idle', placing: 'starting', starting: 'starting', running: 'busy', stopping: 'waiting', failed: 'failed', succeeded: 'done' };

/** How long each phase took; the one still in it grows. @param {{ of: any[], state: string, thin?: boolean }} props */
export function Phases({ of, thin }) {
  if (!of?.length) return null;
  const long = of.map((p) => ({ ...p, took: p.ms ?? Math.max(0, now.value - p.at) }));
  const all = Math.max(1, long.reduce((sum, p) => sum + p.took, 0));
  const words = long.map((p) => `${p.name} ${p.ms === null ? age(p.took) : span(p.took)}`).join(', ');
  return html`<div class="phases ${thin ? 'thin' : ''}" role="img" aria-label=${words} title=${words}>${long.map((p) => html`<span key=${p.name + p.at} class="phase tone-${tones[p.name] ?? 'idle'} ${p.ms === null ? 'going' : ''}" style=${{ flexGrow: String(Math.max(1.5, (100 * p.took) / all)) }}>
    ${thin ? null : html`<b>${p.name}</b> <i>${p.ms === null ? age(p.took) : span(p.took)}</i>`}</span>`)}</div>`;
}

/** One row a node: what was asked, what was free, what did not fit first. @param {{ of: any }} props */
export function Refusal({ of: r }) {
  const fits = r.rows.filter((row) => row.fits).length;
  return html`<p class="sentence">${r.sentence}</p>
    <${Rows} label="What each node answered" head=${['node', 'asked', 'free', 'why not']} rows=${r.rows.map((row) => [
      html`<${Link} node=${row.node} />`, row.asked, row.free,
      row.fits ? html`<span class="tone-done"><${Shape} of="check" /> would fit</span>` : html`<span class="tone-failed"><${Shape} of="cross" size=${10} /></span> ${row.why}`,
    ])} />
    <p class="dim">${plural(r.rows.length, 'node')} asked, ${fits ? `${fits} would fit` : 'none fits'}.</p>`;
}

