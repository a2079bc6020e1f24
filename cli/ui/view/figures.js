// Figures of a run besides curves: histograms, heat, gauges of stores and sources as bars.
// @ts-check
import { html } from '../vendor/preact.js';
import { count, digits, percent, short, value } from '../format.js';
import { Bar, Rows } from './part.js';

/** @param {{ of: { title: string, unit: string, bins: [number, number, number][] } }} props */
export function Histogram({ of }) {
  const most = Math.max(1, ...of.bins.map((b) => b[2]));
  const all = Math.max(1, of.bins.reduce((n, b) => n + b[2], 0));
  const wide = 100 / Math.max(1, of.bins.length);
  const peak = of.bins.find((b) => b[2] === most);
  const words = peak ? `${of.title}: ${count(all)} in all, most from ${short(peak[0])} to ${short(peak[1])}` : `${of.title}: nothing yet`;
  return html`<figure class="histogram" aria-label=${words}><figcaption><span>${of.title}</span><span class="dim">${count(all)} in all</span></figcaption>
    <svg viewBox="0 0 100 60" preserveAspectRatio="none" aria-hidden="true">${of.bins.map((b, i) => html`<rect key=${i} x=${i * wide + 0.4} width=${Math.max(0.5, wide - 0.8)} y=${60 - (b[2] / most) * 58} height=${(b[2] / most) * 58}><title>${`${short(b[0])} to ${short(b[1])} ${of.unit}: ${count(b[2])} (${percent(b[2] / all)})`}</title></rect>`)}</svg>
    <p class="dim ends"><span>${of.bins.length ? short(of.bins[0][0]) : ''}</span><span>${of.unit}</span><span>${of.bins.length ? short(of.bins[of.bins.length - 1][1]) : ''}</span></p></figure>`;
}

/** Rows by columns: the deeper, the more. @param {{ of: { title: string, unit: string, rows: string[], columns: string[], values: number[][] } }} props */
export function Heat({ of }) {
  const flat = of.values.flat();
  const most = Math.max(1e-12, ...flat);
  const least = Math.min(...flat, most);
  const w = 22;
  const left = 64;
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label=${of.title}><svg class="heat" role="img" aria-label=${`${of.title}: from ${value(least, of.unit)} to ${value(most, of.unit)}`} width=${left + of.columns.length * w} height=${18 + of.rows.length * 16}>
    ${of.columns.map((c, j) => html`<text key=${c} class="dim" x=${left + j * w + w / 2} y="11" text-anchor="middle">${c}</text>`)}
    ${of.rows.map((r, i) => html`<g key=${i}><text x="0" y=${29 + i * 16}>${r}</text>${(of.values[i] ?? []).map((v, j) => html`<rect key=${j} x=${left + j * w} y=${18 + i * 16} width=${w - 1} height="15" fill-opacity=${(0.05 + (0.95 * v) / most).toFixed(3)}><title>${`${r}, ${of.columns[j]}: ${value(v, of.unit)}`}</title></rect>`)}</g>`)}
  </svg></div><p class="dim">from ${value(least, of.unit)} to ${value(most, of.unit)}</p>`;
}

/** @param {{ of: { rows: number, most: number, waiting: number, in_use: number } }} props */
export function Store({ of: s }) {
  return html`<p class="store"><${Bar} share=${s.most ? s.rows / s.most : 0} tone=${s.rows > s.most * 0.95 ? 'waiting' : 'accent'} /> <b>${count(s.rows)}</b> of ${count(s.most)} rows
    <span class="dim">${count(s.in_use)} in use, ${s.waiting ? html`<span class="tone-waiting">${count(s.waiting)} waiting for room or rows</span>` : 'nobody waits'}</span></p>`;
}

/** @param {{ of: any[] }} props */
export function Sources({ of }) {
  return html`<${Rows} label="Sources" head=${['source', 'rate', 'buffer', 'full', 'shadow']} right=${[1, 2]} rows=${of.map((s) => [
    s.name, `${digits(s.rate)} ${s.unit}`, `${count(s.buffer)} of ${count(s.buffer_max)}`,
    html`<${Bar} share=${s.buffer_max ? s.buffer / s.buffer_max : 0} tone=${s.buffer < s.buffer_max * 0.1 ? 'waiting' : 'accent'} />`, html`<span class="dim">${s.shadow || 'none'}</span>`,
  ])} />`;
}
