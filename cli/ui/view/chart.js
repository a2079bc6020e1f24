// A curve over steps or time, with what stands under the pointer.
// @ts-check
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { uPlot } from '../vendor/uplot.js';
import { clock, count, short, span, value } from '../format.js';
import { theme } from '../prefs.js';
import { paint, repaint } from '../timeline/paint.js';

/** @param {{ of: { name: string, title: string, unit: string, x: string, points: [number, number][] }, group: string }} props */
export function Curve({ of, group }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const [at, setAt] = useState(/** @type {number | null} */ (null));
  useEffect(() => {
    const el = box.current;
    if (!el) return undefined;
    repaint();
    plot.current = new uPlot(options(of, el, group, setAt), columns(of.points), el);
    const seen = new ResizeObserver(() => plot.current?.setSize({ width: el.clientWidth, height: tall }));
    seen.observe(el);
    return () => {
      seen.disconnect();
      plot.current?.destroy();
    };
  }, [of.name, theme.value]);
  useEffect(() => plot.current?.setData(columns(of.points)), [of.points]);
  const last = of.points[of.points.length - 1];
  const here = at !== null && of.points[at] ? of.points[at] : last;
  const x = here ? (of.x === 'time' ? clock(here[0]) : `step ${count(here[0])}`) : '';
  return html`<figure class="curve" aria-label=${`${of.title}: ${last ? `${value(last[1], of.unit)} at ${of.x === 'time' ? clock(last[0]) : `step ${last[0]}`}` : 'nothing yet'}`}>
    <figcaption><span>${of.title}</span><span><b>${here ? value(here[1], of.unit) : '-'}</b> <span class="dim">${x}</span></span></figcaption><div ref=${box} /></figure>`;
}

/** Points in the order of x, as the plot wants them. @param {[number, number][]} points */
function columns(points) {
  const all = points.every((p, i) => !i || p[0] >= points[i - 1][0]) ? points : [...points].sort((a, b) => a[0] - b[0]);
  return [all.map((p) => p[0]), all.map((p) => p[1])];
}

/** @param {any} of @param {HTMLElement} el @param {string} group @param {(i: number | null) => void} setAt */
function options(of, el, group, setAt) {
  const p = paint();
  const own = ['share', 's', 'ms', 'bytes'].includes(of.unit);
  const named = (/** @type {string} */ label) => ({ label, labelSize: 14, labelGap: 0, labelFont: '11px system-ui, sans-serif' });
  const axis = { stroke: p.dim, font: '11px system-ui, sans-serif', grid: { stroke: p.line, width: 1 }, ticks: { show: false } };
  return {
    width: Math.max(120, el.clientWidth), height: tall, legend: { show: false }, padding: [8, 16, 0, 0],
    scales: { x: { time: false } },
    cursor: { sync: { key: group }, points: { size: 6 }, drag: { x: true, y: false } },
    axes: [
      { ...axis, ...(of.x === 'time' ? {} : named('step')), size: 22, values: (_, /** @type {number[]} */ all) => all.map((v) => (of.x === 'time' ? clock(v) : short(v))), space: 44 },
      { ...axis, ...(own || !of.unit ? {} : named(of.unit)), size: 48, values: (_, /** @type {number[]} */ all) => all.map((v) => marked(v, of.unit)), space: 22 },
    ],
    series: [{}, { stroke: p.accent, width: 1.3, points: { show: false } }],
    hooks: { setCursor: [(u) => setAt(u.cursor.idx ?? null)] },
  };
}

const tall = 146;

/** What stands at a line across the chart. @param {number} v @param {string} unit */
function marked(v, unit) {
  if (unit === 's' || unit === 'ms') return span(unit === 's' ? v * 1000 : v);
  return unit === 'share' || unit === 'bytes' ? value(v, unit) : plain(v);
}

/** Axis numbers without rounding away their differences. @param {number} v */
const plain = (v) => (Math.abs(v) >= 1000 ? short(v) : String(Number(v.toPrecision(4))));
