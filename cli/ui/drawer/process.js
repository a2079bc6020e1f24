// A process: what it is, what it uses, whom it carries.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, count, percent } from '../format.js';
import { Few } from '../view/actorrow.js';
import { EventLines } from '../view/eventline.js';
import { State } from '../view/glyph.js';
import { Age, Facts, Link, Measured, Section, jobOf } from '../view/part.js';
import { Logs } from '../view/logs.js';
import { DeadLetters } from '../view/processes.js';
import { Series } from '../view/spark.js';
import { Title } from './title.js';

/** @param {{ of: any }} props */
export function ProcessBody({ of: d }) {
  const p = d.process ?? d;
  const series = Object.values(d.series ?? {}).filter(Boolean);
  return html`<${Title} sign=${html`<${State} of=${p.state} />`} title=${`${p.kind} ${p.id}`} sub=${html`for <${Age} since=${p.started} />`} />
    <${Facts} of=${[
      ['node', html`<${Link} to=${{ kind: 'node', id: p.node, name: p.node }} />`],
      ['pid', p.pid === null ? html`<span class="missing" title="no process id is known">-</span>` : String(p.pid)],
      ['job', p.job ? html`<${Link} to=${jobOf(p.job)} />` : null],
      ['processor', html`<${Measured} of=${p.cpu} show=${percent} gone=${p.state === 'gone'} /> of one core`],
      ['memory', html`<${Measured} of=${p.rss} show=${bytes} gone=${p.state === 'gone'} />`],
      ['actors', count(p.actors)],
      ['dead letters', html`<${DeadLetters} of=${p.dead_letters} />`],
    ]} />
    ${series.length ? html`<div class="rates">${series.map((s) => html`<${Series} key=${s.name} of=${s} gone=${p.state === 'gone'} />`)}</div>` : null}
    ${d.actors?.length ? html`<${Section} title="Actors" note=${count(p.actors)}><${Few} rows=${d.actors} label="Actors in it" /><//>` : null}
    ${d.events?.length ? html`<${Section} title="Events"><${EventLines} of=${[...d.events].reverse()} label="Events of the process" /><//>` : null}
    <${Logs} query=${{ process: p.id }} />`;
}
