// The machines of a run beside each other: a row a machine, a column a metric, the deeper the further from the median.
// @ts-check
import { html } from '../vendor/preact.js';
import { count, digits, plural, value } from '../format.js';
import { Link, Section, Wide } from './part.js';
/**
 * @typedef {{ mean: number, deviations: number | null, points: number[] }} Cell
 * @typedef {{ node: string, ranks: number, cells: (Cell | null)[] }} Machine
 * @typedef {{ name: string, title: string, unit: string, median: number }} Metric
 * @typedef {{ stages: string[], seconds: number, total: number, metrics: Metric[], machines: Machine[] }} Group
 */

/** From so many robust standard deviations on a machine is odd. */
const odd = 3;
const shades = [['', 'within 2 deviations of the median'], ['near', 'up to 3'], ['far', 'up to 6: odd if it lasts'], ['furthest', 'more']];

/** The shade of a distance from the median. @param {number | null | undefined} deviations */
export function shade(deviations) {
  const far = Math.abs(deviations ?? 0);
  return far < 2 ? '' : far < odd ? 'near' : far < 6 ? 'far' : 'furthest';
}

/** The least and the most of a metric, over all machines and their courses. @param {Machine[]} machines @param {number} at @returns {[number, number]} */
export function range(machines, at) {
  const all = machines.flatMap((m) => m.cells[at]?.points ?? []);
  return all.length ? [Math.min(...all), Math.max(...all)] : [0, 0];
}

/** The course of a number as a path in a box, between the least and the most of its column. @param {number[]} points @param {[number, number]} range @param {number} width @param {number} height */
export function course(points, [least, most], width, height) {
  if (points.length < 2) return '';
  const y = (/** @type {number} */ v) => (most > least ? height - 1 - ((v - least) / (most - least)) * (height - 2) : height / 2);
  return points.map((v, i) => `${i ? 'L' : 'M'}${((i * width) / (points.length - 1)).toFixed(1)} ${y(v).toFixed(1)}`).join('');
}

/** @param {{ of: Group[] }} props */
export function Machines({ of }) {
  const all = of.reduce((n, g) => n + g.total, 0);
  const minutes = Math.round((of[0]?.seconds ?? 0) / 60);
  return html`<${Section} title="Machines" note=${`${plural(all, 'machine')}; means of the last ${plural(minutes, 'minute')}`}>
    <p class="legend dim">${shades.map(([s, words]) => html`<span key=${words}><span class="swatch shade ${s}" /> ${words}</span>`)}</p>
    ${of.map((g, i) => html`<${Map} key=${i} of=${g} many=${of.length > 1} />`)}<//>`;
}

/** @param {{ of: Group, many: boolean }} props */
function Map({ of, many }) {
  const ranges = of.metrics.map((_, i) => range(of.machines, i));
  const stages = of.stages.join(', ');
  const left = of.total - of.machines.length;
  return html`<${Wide} label=${`Machines of ${stages}`}><table class="machines" aria-label=${`Metrics by machine: ${stages}`}>
    <thead><tr><th scope="col">${many ? stages : 'machine'}</th>${of.metrics.map((m) => html`<th scope="col" key=${m.name}>${m.title}<span class="dim">median ${value(m.median, m.unit)}</span></th>`)}</tr></thead>
    <tbody>${of.machines.map((m) => html`<tr key=${m.node}><th scope="row"><${Link} node=${m.node} /> <span class="dim">${plural(m.ranks, 'rank')}</span></th>
      ${of.metrics.map((metric, i) => html`<${Shown} key=${metric.name} of=${m.cells[i]} metric=${metric} node=${m.node} range=${ranges[i]} />`)}</tr>`)}</tbody></table><//>
    ${left > 0 ? html`<p class="dim small">those furthest from the others; ${count(left)} more are nearer</p>` : null}`;
}

/** @param {{ of: Cell | null, metric: Metric, node: string, range: [number, number] }} props */
function Shown({ of, metric, node, range }) {
  if (!of) return html`<td class="dim" title=${`${metric.title} of ${node} is not measured, or tells of what else runs there`}>-</td>`;
  const far = of.deviations ?? 0;
  const where = of.deviations === null ? 'too few to compare' : `${digits(Math.abs(far))} robust deviations ${far < 0 ? 'below' : 'above'} the median`;
  const line = course(of.points, range, 72, 14);
  const sign = Math.abs(far) < odd ? '' : far < 0 ? '\u2193 ' : '\u2191 ';
  return html`<td class="shade ${shade(of.deviations)}" title=${`${metric.title} of ${node}: ${value(of.mean, metric.unit)}, ${where}`}>
    <span class="num">${sign ? html`<b>${sign}</b>` : null}${value(of.mean, metric.unit)}</span>${line ? html`<svg class="spark" width="72" height="14" viewBox="0 0 72 14" aria-hidden="true"><path d=${line} /></svg>` : null}</td>`;
}
