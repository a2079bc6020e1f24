// Lines of a few dozen points, and strips of them.
// @ts-check
import { html } from '../vendor/preact.js';
import { value } from '../format.js';

/**
 * The path of points [t, v] in a box; time runs to `until`, so that what stood still is drawn flat.
 * @param {[number, number][]} points @param {number} from @param {number} until @param {number} width @param {number} height
 */
function path(points, from, until, width, height) {
  if (!points.length || until <= from) return '';
  const most = Math.max(1e-9, ...points.map((p) => p[1]));
  const x = (/** @type {number} */ t) => (((t - from) / (until - from)) * width).toFixed(1);
  const y = (/** @type {number} */ v) => (height - 1 - (v / most) * (height - 2)).toFixed(1);
  let line = '';
  for (const [t, v] of points) if (t >= from) line += `${line ? 'L' : 'M'}${x(t)} ${y(v)}`;
  return line;
}

/** A minute at most, as long as it is known. @param {{ points: [number, number][], until: number, width?: number, height?: number }} props */
export function Spark({ points, until, width = 60, height = 18 }) {
  const held = points.length ? [...points, /** @type {[number, number]} */ ([until, points[points.length - 1][1]])] : [];
  const window = Math.max(2000, Math.min(60_000, until - (points[0]?.[0] ?? until)));
  return html`<svg class="spark" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}><title>${`the last ${ago(window)}`}</title><path d=${path(held, until - window, until, width, height)} /></svg>`;
}

/**
 * A series with its title, its last value and its range; a line stands where something began.
 * @param {{ of: any, gone?: boolean, mark?: number, width?: number, height?: number }} props
 */
function Series({ of, gone = false, mark, width = 240, height = 44 }) {
  const points = of.points ?? [];
  const last = points[points.length - 1];
  const values = points.map((p) => p[1]);
  const most = Math.max(...values, 0);
  const words = last ? `${of.title}: ${gone ? 'was' : 'now'} ${value(last[1], of.unit)}, most ${value(most, of.unit)}` : `${of.title}: nothing yet`;
  const line = points.length > 1 ? path(points, points[0][0], last[0], width, height) : '';
  const begun = line && mark !== undefined && mark > points[0][0] && mark < last[0] ? ((mark - points[0][0]) / (last[0] - points[0][0])) * width : null;
  return html`<figure class="series" aria-label=${words}>
    <figcaption><span>${of.title}</span>${gone && last ? html`<span class="dim" title="when it was last seen">was ${value(last[1], of.unit)}</span>` : html`<b>${last ? value(last[1], of.unit) : '-'}</b>`}</figcaption>
    <svg viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
      ${line ? html`<path class="area" d=${`${line}L${width} ${height}L0 ${height}Z`} /><path class="line" d=${line} />${begun === null ? null : html`<path class="begun" d=${`M${begun.toFixed(1)} 0V${height}`} />`}` : last ? html`<path class="line one" d=${`M${width - 4} ${height / 2}h0`} />` : null}</svg>
    <p class="dim">${line ? `most ${value(most, of.unit)} in ${ago(last[0] - points[0][0])}` : last ? 'measured once so far' : 'nothing measured yet'}</p></figure>`;
}

/** Several beside each other. @param {{ of: any, gone?: boolean, mark?: number }} props */
export function AllSeries({ of, gone = false, mark }) {
  const all = Object.values(of ?? {}).filter(Boolean);
  return all.length ? html`<div class="rates">${all.map((s) => html`<${Series} key=${s.name} of=${s} gone=${gone} mark=${mark} />`)}</div>` : null;
}

const ago = (/** @type {number} */ ms) => (ms < 90_000 ? `${Math.round(ms / 1000)} s` : `${Math.round(ms / 60_000)} min`);
