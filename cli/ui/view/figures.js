// Figures of a run besides curves: histograms, heat, gauges of stores and sources as bars.
// @ts-check
import { html } from '../vendor/preact.js';
import { count, digits, percent, short, value } from '../format.js';
import { Bar, Rows, Wide } from './part.js';

/** What a run is judged by comes first: reward, then losses; the rest by its name. @template {{ name: string }} T @param {T[]} all @returns {T[]} */
export function inOrder(all) {
  const rank = (/** @type {string} */ name) => ['reward', 'loss'].findIndex((w) => new RegExp(`(^|\\.)${w}$`).test(name)) + 1 || 3;
  return [...all].sort((a, b) => rank(a.name) - rank(b.name) || a.name.localeCompare(b.name, 'en'));
}

/**
 * Bins of one whole number each, with those between them that nothing fell into; nothing where bins are of another kind.
 * @param {[number, number, number][]} bins @returns {{ value: number, n: number }[] | null}
 */
export function wholes(bins) {
  const whole = bins.length > 0 && bins.every((b) => Number.isInteger(b[0]) && b[1] - b[0] === 1);
  const [first, last] = [bins[0]?.[0] ?? 0, bins[bins.length - 1]?.[0] ?? 0];
  if (!whole || last - first > 60) return null;
  const by = new Map(bins.map((b) => [b[0], b[2]]));
  return Array.from({ length: last - first + 1 }, (_, i) => ({ value: first + i, n: by.get(first + i) ?? 0 }));
}

/** The fewest places of a histogram, so that one bar alone is no wall. */
const fewest = 6;

/** @param {{ of: { title: string, unit: string, bins: [number, number, number][] } }} props */
export function Histogram({ of }) {
  const each = wholes(of.bins);
  const bars = each ? each.map((b) => ({ word: `${count(b.value)}`, n: b.n })) : of.bins.map((b) => ({ word: `${short(b[0])} to ${short(b[1])}`, n: b[2] }));
  const most = Math.max(1, ...bars.map((b) => b.n));
  const all = bars.reduce((n, b) => n + b.n, 0);
  const wide = 100 / Math.max(fewest, bars.length);
  const peak = bars.find((b) => b.n === most);
  const words = peak ? `${of.title}: ${count(all)} in all, most at ${peak.word}` : `${of.title}: nothing yet`;
  return html`<figure class="histogram" aria-label=${words}><figcaption><span>${of.title}</span><span class="dim">${count(all)} in all</span></figcaption>
    <svg viewBox="0 0 100 60" preserveAspectRatio="none" aria-hidden="true">${bars.map((b, i) => html`<rect key=${i} x=${i * wide + wide * 0.06} width=${wide * 0.88} y=${60 - (b.n / most) * 58} height=${(b.n / most) * 58}><title>${`${b.word} ${of.unit}: ${count(b.n)} (${percent(b.n / Math.max(1, all))})`}</title></rect>`)}</svg>
    ${each ? html`<p class="dim middles">${each.map((b, i) => html`<span key=${b.value} style=${{ width: `${wide}%` }}>${i % Math.ceil(each.length / 12) ? '' : b.value}</span>`)}<span class="unit">${of.unit}</span></p>`
      : html`<p class="dim ends"><span>${of.bins.length ? short(of.bins[0][0]) : ''}</span><span>${of.unit}</span><span>${of.bins.length ? short(of.bins[of.bins.length - 1][1]) : ''}</span></p>`}</figure>`;
}

/** About how wide a text of 11 pixels is. @param {string} text */
const room = (text) => Math.ceil(text.length * 6.6 + 10);

/** Rows by columns: the deeper, the more. @param {{ of: { title: string, unit: string, rows: string[], columns: string[], values: number[][] } }} props */
export function Heat({ of }) {
  const flat = of.values.flat();
  const most = Math.max(1e-12, ...flat);
  const least = Math.min(...flat, most);
  const names = Math.max(22, ...of.columns.map(room));
  const numbers = Math.max(...flat.map((v) => room(value(v, of.unit))));
  const w = numbers <= names || of.columns.length * numbers <= 900 ? Math.max(names, numbers) : names;
  const left = Math.max(64, ...of.rows.map(room));
  const cell = (v, i, j) => html`<g key=${j}><rect x=${left + j * w} y=${18 + i * 20} width=${w - 1} height="19" fill-opacity=${(0.04 + (0.46 * v) / most).toFixed(3)} />
    ${numbers <= w ? html`<text x=${left + j * w + w / 2} y=${32 + i * 20} text-anchor="middle">${value(v, of.unit)}</text>` : null}<title>${`${of.rows[i]}, ${of.columns[j]}: ${value(v, of.unit)}`}</title></g>`;
  return html`<${Wide} label=${of.title}><svg class="heat" role="img" aria-label=${`${of.title}: from ${value(least, of.unit)} to ${value(most, of.unit)}`} width=${left + of.columns.length * w} height=${18 + of.rows.length * 20}>
    ${of.columns.map((c, j) => html`<text key=${c} class="dim" x=${left + j * w + w / 2} y="11" text-anchor="middle">${c}</text>`)}
    ${of.rows.map((r, i) => html`<g key=${i}><text x="0" y=${32 + i * 20}>${r}</text>${(of.values[i] ?? []).map((v, j) => cell(v, i, j))}</g>`)}
  </svg><//><p class="dim">from ${value(least, of.unit)} to ${value(most, of.unit)}</p>`;
}

/** @param {{ of: { rows: number, most: number, waiting: number, in_use: number } }} props */
export function Store({ of: s }) {
  return html`<p class="store"><${Bar} share=${s.most ? s.rows / s.most : 0} tone=${s.rows > s.most * 0.95 ? 'waiting' : 'accent'} /> <b>${count(s.rows)}</b> of ${count(s.most)} rows
    <span class="dim">${count(s.in_use)} in use, ${s.waiting ? `${count(s.waiting)} complete and not taken yet` : 'none waits to be taken'}</span></p>`;
}

/** @param {{ of: any[] }} props */
export function Sources({ of }) {
  return html`<${Rows} label="Sources" head=${['source', 'rate', 'buffer', 'full', 'shadow']} right=${[1, 2]} rows=${of.map((s) => [
    s.name, `${digits(s.rate)} ${s.unit}`, `${count(s.buffer)} of ${count(s.buffer_max)}`,
    html`<${Bar} share=${s.buffer_max ? s.buffer / s.buffer_max : 0} tone=${s.buffer < s.buffer_max * 0.1 ? 'waiting' : 'accent'} />`, html`<span class="dim">${s.shadow || 'none'}</span>`,
  ])} />`;
}
