// A curve over steps or time, with what stands under the pointer.
// @ts-check
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { uPlot } from '../vendor/uplot.js';
import { get } from '../api.js';
import { usePolled } from '../drawer/detail.js';
import { clock, count, short, span, value } from '../format.js';
import { theme } from '../prefs.js';
import { instant } from '../store.js';
import { paint, repaint } from '../timeline/paint.js';
import { View } from './states.js';
/**
 * A point is its place and its value and, with a band, the most and the least around it.
 * @typedef {{ name: string, title: string, unit: string, x: string, points: number[][], within?: [number, number] }} Of
 */

/** @param {{ of: Of, group: string }} props */
export function Curve({ of, group }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const fresh = useRef(of);
  fresh.current = of;
  const [at, setAt] = useState(/** @type {number | null} */ (null));
  useEffect(() => {
    const el = box.current;
    if (!el) return undefined;
    repaint();
    plot.current = new uPlot(options(fresh, el, group, setAt), columns(of), el);
    const seen = new ResizeObserver(() => plot.current?.setSize({ width: el.clientWidth, height: tall }));
    seen.observe(el);
    return () => {
      seen.disconnect();
      plot.current?.destroy();
    };
  }, [of.name, theme.value]);
  useEffect(() => plot.current?.setData(columns(of)), [of.points]);
  const last = of.points[of.points.length - 1];
  const here = at !== null && of.points[at] ? of.points[at] : last;
  const place = (/** @type {number[]} */ p) => (of.x === 'time' ? clock(p[0]) : `step ${count(p[0])}`);
  const band = of.within && last ? `${at === null ? '' : `${place(here)}: `}${around(at === null ? of.points : [here], of.unit)}` : '';
  return html`<figure class="curve" aria-label=${`${of.title}: ${last ? `${value(last[1], of.unit)} at ${place(last)}${band && `, ${around(of.points, of.unit)}`}` : 'nothing yet'}`}>
    <figcaption><span>${of.title}</span><span><b>${here ? value(here[1], of.unit) : '-'}</b>${here && !band ? html` <span class="dim">${place(here)}</span>` : null}</span></figcaption>
    ${band ? html`<p class="dim">${band}</p>` : null}<div ref=${box} /></figure>`;
}

/** From the least to the most. @param {number[][]} points @param {string} unit */
function around(points, unit) {
  const least = Math.min(...points.map((p) => p[3]));
  const most = Math.max(...points.map((p) => p[2]));
  return `from ${own(unit) ? value(least, unit) : short(least)} to ${value(most, unit)}`;
}

/** Points in the order of x, as the plot wants them. @param {Of} of */
function columns({ points, within }) {
  const all = points.every((p, i) => !i || p[0] >= points[i - 1][0]) ? points : [...points].sort((a, b) => a[0] - b[0]);
  return Array.from({ length: within ? 4 : 2 }, (_, i) => all.map((p) => p[i]));
}

/** @param {{ current: Of }} fresh @param {HTMLElement} el @param {string} group @param {(i: number | null) => void} setAt */
function options(fresh, el, group, setAt) {
  const of = fresh.current;
  const p = paint();
  const edge = { stroke: 'transparent', points: { show: false } };
  // One point alone is no line.
  const dot = { show: (u) => u.data[0].length === 1, size: 7, fill: p.accent };
  return {
    width: Math.max(120, el.clientWidth), height: tall, legend: { show: false }, padding: [8, 16, 0, 0],
    scales: scales(fresh),
    cursor: { sync: { key: group }, points: { size: 6 }, drag: { x: !of.within, y: false } },
    axes: axes(of, { stroke: p.dim, font, grid: { stroke: p.line, width: 1 }, ticks: { show: false } }),
    series: [{}, { stroke: p.accent, width: 1.3, points: dot }, ...(of.within ? [edge, edge] : [])],
    bands: of.within ? [{ series: [2, 3], fill: p.accent.replace(')', ', 0.2)') }] : [],
    hooks: { setCursor: [(u) => setAt(u.cursor.idx ?? null)] },
  };
}

/** A point alone stands in the middle; what is asked for by its time keeps that, and begins at zero. @param {{ current: Of }} fresh */
function scales(fresh) {
  const room = fresh.current.x === 'time' ? 30_000 : 1;
  const x = (_, from = 0, to = 0) => fresh.current.within ?? (from < to ? [from, to] : [from - room, from + room]);
  const y = { range: (_, _least, most) => [0, most * 1.08 || 1] };
  return { x: { time: false, range: x }, ...(fresh.current.within ? { y } : {}) };
}

/** @param {Of} of @param {any} axis */
function axes({ x, unit }, axis) {
  const named = (/** @type {string} */ label) => ({ label, labelSize: 14, labelGap: 0, labelFont: font });
  const time = (_, all, _a, _b, step) => all.map((v) => clock(v).slice(0, step < 60_000 ? 8 : 5));
  const steps = (_, all) => all.map(short);
  const across = x === 'time' ? { incrs: times, space: 62, values: time } : { ...named('step'), incrs: wholes, space: 44, values: steps };
  const binary = /^(B|bytes)/.test(unit);
  const up = { ...(own(unit) || !unit ? {} : named(unit)), ...(binary ? { incrs: doubles } : {}), size: unit === 'B/s' ? 68 : 48 };
  const values = (_, all) => all.map((v) => marked(v, unit));
  return [{ ...axis, ...across, size: 22 }, { ...axis, ...up, values, space: 22 }];
}

const tall = 146;
const font = '11px system-ui, sans-serif';
/** Whether it stands at each number. @param {string} unit */
const own = (unit) => ['share', 'bytes', 'B', 'B/s', 's', 'ms'].includes(unit) || unit.startsWith('/');
/** Steps between times that read well, in milliseconds. */
const times = [1, 5, 15, 30, 60, 120, 300, 900, 1800, 3600, 7200, 21_600, 86_400].map((s) => s * 1000);
const doubles = Array.from({ length: 50 }, (_, i) => 2 ** i);
const wholes = Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));
/** What stands at a line across the chart. @param {number} v @param {string} unit */
function marked(v, unit) {
  if (unit === 's' || unit === 'ms') return span(unit === 's' ? v * 1000 : v);
  if (unit.startsWith('/')) return `${plain(v)}${unit}`;
  return own(unit) ? value(v, unit) : plain(v);
}

/** Axis numbers without rounding away their differences. @param {number} v */
const plain = (v) => (Math.abs(v) >= 1000 ? short(v) : String(Number(v.toPrecision(4))));

/** Points of one chart, and the longest until they are asked for again. */
const pointsMost = 360;
const againMs = 10_000;

/**
 * Numbers over a longer time: their mean as a line within the least and the most.
 * @param {{ of: { name: string, title: string }[], ms: number }} props
 */
export function History({ of, ms }) {
  const ask = async (/** @type {AbortSignal} */ signal) => {
    const to = instant();
    const within = [to - ms, to];
    const told = await Promise.all(of.map(({ name }) => get('inspect/series', { name, from: to - ms, to, px: pointsMost }, signal)));
    const points = ({ data }) => data.points.map(([at, min, max, mean]) => [at, mean, max, min]);
    return told.map((e, i) => ({ ...of[i], unit: e.data.unit, x: 'time', within, points: points(e) }));
  };
  const is = usePolled(`${ms} ${of.map((s) => s.name)}`, ask, Math.min(againMs, ms / 150), 'history');
  const empty = html`<p class="dim">Nothing was measured in this time.</p>`;
  return html`<div class="history"><${View} of=${is} again=${is.again} isEmpty=${is.data?.every((s) => !s.points.length)} empty=${empty}>
    <div class="curves">${is.data?.map((s) => html`<${Curve} key=${s.name} of=${s} group="history" />`)}</div><//></div>`;
}
