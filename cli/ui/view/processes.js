// Processes of a node, one a row.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, count, percent } from '../format.js';
import { State } from './glyph.js';
import { Age, Job, Link, Measured, Rows, none } from './part.js';

/** Messages that nobody handled. @param {{ of: number }} props */
export const DeadLetters = ({ of }) => html`<span class=${of ? 'num tone-waiting' : 'num'} title="messages that nobody handled">${count(of)}</span>`;

/** @param {{ of: any[] }} props */
export function Processes({ of }) {
  const dead = of.some((p) => p.dead_letters);
  const rows = of.map((p) => [
    html`<${State} of=${p.state} bare=${true} /> <${Link} to=${{ kind: 'process', id: p.id, name: `${p.kind} ${p.id}` }} />`,
    p.pid ?? none('no process id is known'),
    html`<${Job} of=${p.job} />`,
    html`<${Measured} of=${p.cpu} show=${percent} gone=${p.state === 'gone'} />`, html`<${Measured} of=${p.rss} show=${bytes} gone=${p.state === 'gone'} />`, count(p.actors), html`<${Age} since=${p.started} />`, ...(dead ? [html`<${DeadLetters} of=${p.dead_letters} />`] : []),
  ]);
  return html`<${Rows} label="Processes" head=${['process', 'pid', 'job', 'cpu', 'memory', 'actors', 'age', ...(dead ? ['dead letters'] : [])]} right=${[1, 3, 4, 5, 6, 7]} rows=${rows} />`;
}
