// Signs: a state is always a shape, a word and a colour.
// @ts-check
import { html } from '../vendor/preact.js';
import { capital } from '../format.js';

const ring = 'M6 1.6a4.4 4.4 0 1 0 0 8.8a4.4 4.4 0 1 0 0-8.8z';
/** @type {Record<string, [string, 'fill' | 'line' | 'dots']>} */
const shapes = {
  circle: [ring, 'line'],
  dot: [ring, 'fill'],
  dots: [ring, 'dots'],
  triangle: ['M2.6 1.4v9.2L10.6 6z', 'fill'],
  half: ['M6 1.6a4.4 4.4 0 1 0 0 8.8a4.4 4.4 0 1 0 0-8.8zM6 1.6v8.8M6 3h2.6M6 4.5h4M6 6h4.3M6 7.5h4M6 9h2.6', 'line'],
  turn: ['M9.9 4.2A4.4 4.4 0 1 0 10.4 6M10.6 1.6v3h-3', 'line'],
  square: ['M2.2 2.2h7.6v7.6H2.2z', 'line'],
  cross: ['M2.2 2.2l7.6 7.6M9.8 2.2l-7.6 7.6', 'line'],
  check: ['M1.8 6.4l3 3 5.4-6.8', 'line'],
  mark: ['M6 1.2v6M6 9.6v1.2', 'line'],
  pause: ['M3.6 2v8M8.4 2v8', 'line'],
  info: ['M6 5v5M6 2v1.2', 'line'],
  right: ['M4 2l4 4-4 4', 'line'],
  down: ['M2 4l4 4 4-4', 'line'],
  away: ['M3 9l6-6M4 3h5v5', 'line'],
  search: ['M5.2 1.6a3.6 3.6 0 1 0 0 7.2a3.6 3.6 0 1 0 0-7.2M8 8l2.8 2.8', 'line'],
};

/** state -> shape, tone, and the word where it is another */
const states = {
  idle: ['circle', 'idle'], busy: ['triangle', 'busy'], waiting: ['half', 'waiting'],
  starting: ['dots', 'starting'], restarting: ['turn', 'starting'],
  stopped: ['square', 'idle'], failed: ['cross', 'failed'],
  up: ['dot', 'done'], suspect: ['mark', 'waiting'], refused: ['cross', 'waiting'], draining: ['half', 'waiting'], down: ['cross', 'failed'],
  lost: ['cross', 'failed'],
  ok: ['dot', 'done'], faulty: ['cross', 'failed'],
  queued: ['circle', 'idle'], placing: ['dots', 'starting'], running: ['triangle', 'busy'],
  stopping: ['half', 'waiting'], succeeded: ['check', 'done'], finished: ['check', 'done'],
  halted: ['square', 'waiting'], gone: ['square', 'idle'],
  error: ['cross', 'failed'], warning: ['mark', 'waiting'], info: ['info', 'idle'],
  failure: ['cross', 'failed', 'Failed'], restart: ['turn', 'starting', 'Restarted'], started: ['triangle', 'busy'],
  node: ['dot', 'idle'], job: ['away', 'idle'], problem: ['mark', 'waiting'],
  device: ['square', 'idle'],
};

/** @param {string} state @returns {{ shape: string, tone: string, word: string }} */
export function looks(state) {
  const [shape, tone, word = capital(state)] = states[state] ?? ['circle', 'idle', state];
  return { shape, tone, word };
}

/** The shape alone; whoever shows it says the word as well. @param {{ of: string, size?: number }} props */
export function Shape({ of, size = 12 }) {
  const [path, kind] = shapes[of] ?? shapes.circle;
  return html`<svg class="glyph ${kind}" viewBox="0 0 12 12" width=${size} height=${size} aria-hidden="true"><path d=${path} /></svg>`;
}

/** Shape, word and colour. @param {{ of: string, word?: string, fresh?: boolean, bare?: boolean }} props */
export function State({ of, word, fresh, bare }) {
  const is = looks(of);
  return html`<span class="state tone-${is.tone} ${fresh ? 'flash' : ''}" key=${of} title=${bare ? is.word : null}>
    <${Shape} of=${is.shape} /><span class=${bare ? 'hidden' : ''}>${word ?? is.word}</span></span>`;
}

/** Worst first; for sorting and for groups. */
export const worst = ['failed', 'restarting', 'waiting', 'starting', 'busy', 'idle', 'stopped'];
