// What every rollout generates: a lane each, a bar per trajectory, its tone by how old the weights were.
// @ts-check
import { html, useEffect, useRef } from '../vendor/preact.js';
import { count, digits } from '../format.js';
import { theme } from '../prefs.js';
import { font, ink, paint, prepare, repaint } from '../timeline/paint.js';
import { Link, none } from './part.js';

const row = 24;
const length = 60_000;
/** By how many versions the weights were behind the newest that any rollout used by then. */
const tones = ['k2', 'k4', 'k5', 'k1'];

/** @param {{ of: any[], at: number, newest: number }} props */
export function Rollouts({ of, at, newest }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => {
    repaint();
  }, [theme.value]);
  useEffect(() => {
    const el = canvas.current;
    if (!el) return undefined;
    const draw = () => lanes(el, of, at);
    draw();
    const seen = new ResizeObserver(draw);
    seen.observe(/** @type {Element} */ (el.parentElement));
    return () => seen.disconnect();
  }, [of, theme.value]);
  const sum = (/** @type {string} */ name) => of.reduce((all, r) => all + r[name], 0);
  const words = `${of.length} rollouts, last minute: ${count(sum('done'))} trajectories done, ${count(sum('going'))} going, ${count(sum('dropped'))} dropped`;
  const thinned = of.some((r) => r.trajectories.length < r.done + r.going + r.dropped);
  return html`<div class="rollouts"><ul>${of.map((r) => html`<li key=${r.name}><${Link} to=${r.subject} word=${r.name} /> ${r.version === null ? none('it has not said which weights it uses') : html`<span class=${r.version < newest ? 'tone-waiting num' : 'dim num'} title="the version it generates with">v${r.version}</span>`}</li>`)}</ul>
    <div class="hold-in"><canvas ref=${canvas} role="img" aria-label=${words} /></div></div>
    <p class="legend dim"><span>weights behind the newest in use by</span>${['0', '1', '2', '3 or more'].map((w, i) => html`<span key=${w}><span class="swatch ${tones[i]}" /> ${w}</span>`)}<span>the shade turns with the version</span><span>outlined: going</span><span>crossed out: dropped</span><span class="grow" /><span>${words.split(': ')[1]}, ${count(sum('tokens'))} tokens${thinned ? ', some of them drawn' : ''}</span></p>`;
}

/** The newest version in use when each trajectory began. @param {any[]} of @returns {Map<any, number>} */
export function newestThen(of) {
  let most = 0;
  const all = of.flatMap((r) => r.trajectories).sort((a, b) => a[0] - b[0]);
  return new Map(all.map((t) => [t, (most = Math.max(most, t[2]))]));
}

/** @param {HTMLCanvasElement} el @param {any[]} of @param {number} at */
function lanes(el, of, at) {
  const width = el.parentElement?.clientWidth ?? 300;
  const height = of.length * row;
  el.style.width = `${width}px`;
  el.style.height = `${height}px`;
  const c = prepare(el, width, height);
  const p = paint();
  c.clearRect(0, 0, width, height);
  c.font = font;
  c.textBaseline = 'middle';
  const newest = newestThen(of);
  const x = (/** @type {number} */ t) => ((t - at + length) / length) * width;
  of.forEach((r, i) => {
    c.fillStyle = p.line;
    c.fillRect(0, (i + 1) * row - 1, width, 1);
    for (const t of r.trajectories) bar(c, p, t, x(t[0]), x(t[1] ?? at), i * row + 4, newest.get(t) ?? t[2]);
  });
}

/** @param {CanvasRenderingContext2D} c @param {Record<string, string>} p @param {any} t @param {number} from @param {number} to @param {number} y @param {number} newest */
function bar(c, p, [, , version, , state, reward], from, to, y, newest) {
  if (to < 0) return;
  const x = Math.max(0, from);
  const w = Math.max(1.5, to - x - 1);
  const colour = p[tones[Math.max(0, Math.min(3, newest - version))]];
  c.globalAlpha = state === 'done' ? (version % 2 ? 0.95 : 0.7) : 0.3;
  c.fillStyle = colour;
  c.fillRect(x, y, w, row - 9);
  c.globalAlpha = 1;
  c.strokeStyle = state === 'dropped' ? p.failed : colour;
  c.lineWidth = 1;
  if (state !== 'done') c.strokeRect(x + 0.5, y + 0.5, w - 1, row - 10);
  if (state === 'dropped') {
    c.beginPath();
    c.moveTo(x, y + row - 9);
    c.lineTo(x + w, y);
    c.stroke();
  }
  if (reward === null || w < 30) return;
  c.fillStyle = ink(colour);
  c.fillText(digits(reward), x + 5, y + (row - 9) / 2);
}
