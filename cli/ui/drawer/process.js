// A process: what it is, what it uses, whom it carries.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, count, percent } from '../format.js';
import { Actors } from '../view/actorrow.js';
import { Happened } from '../view/eventline.js';
import { Age, Facts, Job, Link, Measured, none } from '../view/part.js';
import { Logs } from '../view/logs.js';
import { DeadLetters } from '../view/processes.js';
import { AllSeries } from '../view/spark.js';
import { Title } from './title.js';

export function ProcessBody({ of: d }) {
  const p = d.process ?? d;
  return html`<${Title} state=${p.state} title=${`${p.kind} ${p.id}`} sub=${html`for <${Age} since=${p.started} />`} />
    <${Facts} of=${[
      ['node', html`<${Link} node=${p.node} />`],
      ['pid', p.pid === null ? none('no process id is known') : String(p.pid)],
      ['job', p.job ? html`<${Job} of=${p.job} />` : null],
      ['processor', html`<${Measured} of=${p.cpu} show=${percent} gone=${p.state === 'gone'} /> of one core`],
      ['memory', html`<${Measured} of=${p.rss} show=${bytes} gone=${p.state === 'gone'} />`],
      ['actors', count(p.actors)],
      ['dead letters', html`<${DeadLetters} of=${p.dead_letters} />`],
    ]} />
    <${AllSeries} of=${d.series} gone=${p.state === 'gone'} />
    <${Actors} rows=${d.actors} all=${p.actors} f=${`process:${p.id}`} label="Actors in it" />
    <${Happened} of=${d.events} whose="the process" />
    <${Logs} query=${{ process: p.id }} />`;
}
