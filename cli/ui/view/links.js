// Links between nodes, one a row.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, count, span } from '../format.js';
import { Link, Measured, Rows } from './part.js';

const node = (n) => html`<${Link} node=${n} />`;

/** @param {{ of: any[] }} props */
export function Links({ of }) {
  const rows = of.map((l) => [
    html`${node(l.from)} → ${node(l.to)}`, l.kind,
    html`<${Measured} of=${l.bytes_per_s} show=${(b) => `${bytes(b)}/s`} />`,
    html`<${Measured} of=${l.rtt_us} show=${(us) => span(us / 1000)} />`,
    bytes(l.queued_bytes), bytes(l.unacknowledged_bytes),
    html`<span title=${l.last_break ?? 'never broken'} class=${l.resumed ? 'tone-waiting' : 'dim'}>${count(l.resumed)}</span>`,
    html`<span class=${l.silent_ms > 3000 ? 'tone-failed' : 'dim'}>${span(l.silent_ms)}</span>`,
  ]);
  return html`<${Rows} label="Links" head=${['link', 'kind', 'flow', 'round trip', 'queued', 'unacked', 'resumed', 'silent']} right=${[2, 3, 4, 5, 6, 7]} rows=${rows} />`;
}
