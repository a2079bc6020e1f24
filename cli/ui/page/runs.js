// Runs: what learns, how well, with which weights, on what data.
// @ts-check
import { html } from '../vendor/preact.js';
import { count, plural, value, when } from '../format.js';
import { patch, route } from '../route.js';
import { about, now } from '../store.js';
import { useView } from '../stream.js';
import { Board } from '../view/board.js';
import { Curve } from '../view/chart.js';
import { Heat, Histogram, Sources, Store, inOrder } from '../view/figures.js';
import { Bar as Toolbar } from '../view/filterbox.js';
import { State } from '../view/glyph.js';
import { Logs } from '../view/logs.js';
import { Machines } from '../view/machines.js';
import { Memory } from '../view/memory.js';
import { Mesh } from '../view/mesh.js';
import { Age, Progress, Section, Toggle, jobOf } from '../view/part.js';
import { Pipeline } from '../view/pipeline.js';
import { Rollouts } from '../view/rollouts.js';
import { Empty, View } from '../view/states.js';

export function Runs() {
  const is = useView({ view: 'runs' });
  const runs = is.data?.runs ?? [];
  const asked = route.value.params.run;
  const run = runs.find((r) => r.id === asked) ?? runs.find((r) => r.state === 'running') ?? runs[0];
  return html`<${Toolbar} title="Runs" note=${is.data ? count(runs.length) : ''}>
      ${runs.length > 1 ? html`<span class="choice" role="group" aria-label="Run">${runs.map((r) => html`<${Toggle} key=${r.id} on=${r === run} onClick=${() => patch({ run: r.id }, false)}><${State} of=${r.state} bare=${true} /> ${r.name || 'run'}<//>`)}</span>` : null}<//>
    <${View} of=${is} isEmpty=${!run} skeleton="blocks" empty=${html`<${Empty} title="No run is known" why="A run is a recipe at work: training, reinforcement learning, or data." run />`}>
      ${run ? html`<div class="page run" key=${run.id}><${Run} of=${run} /></div>` : null}<//>`;
}

function Run({ of: r }) {
  const newest = Math.max(0, ...r.rollouts.flatMap((x) => [x.version ?? 0, ...x.trajectories.map((t) => t[2])]));
  return html`<${Head} of=${r} />
    ${r.curves.length ? html`<${Section} title="Curves" note="drag to zoom, double-click to see all"><div class="curves">${inOrder(r.curves).map((c) => html`<${Curve} key=${`${r.id} ${c.name}`} of=${c} group=${`run ${r.id}`} />`)}</div><//>` : null}
    ${r.mesh ? html`<${Mesh} of=${r.mesh} />` : null}
    ${r.pipeline ? html`<${Pipeline} of=${r.pipeline} />` : null}
    ${r.machines?.length ? html`<${Machines} of=${r.machines} />` : null}
    ${r.mesh ? html`<${Memory} of=${r.mesh} />` : null}
    ${r.rollouts.length ? html`<${Section} title="Rollouts" note=${newest ? `last minute; the newest weights in use are version ${newest}` : 'last minute'}><${Rollouts} of=${r.rollouts} at=${now.value} newest=${newest} /><//>` : null}
    <div class="two">
      ${r.store ? html`<${Section} title="Trajectories in store"><${Store} of=${r.store} /><//>` : null}
      ${r.sources.length ? html`<${Section} title="Data sources" note=${plural(r.sources.length, 'source')}><${Sources} of=${r.sources} /><//>` : null}
    </div>
    ${r.histograms.length ? html`<${Section} title="Distributions"><div class="curves">${r.histograms.map((h) => html`<${Histogram} key=${h.name} of=${h} />`)}</div><//>` : null}
    ${r.heat ? html`<${Section} title=${r.heat.title}><${Heat} of=${r.heat} /><//>` : null}
    ${r.board ? html`<${Board} of=${r.board} />` : null}
    <${Logs} query=${r.id && about.value?.faces?.jobs ? { job: jobOf(r.id).id } : {}} />`;
}

function Head({ of: r }) {
  return html`<div class="run-head"><div><h2>${r.name || 'run without a name'}</h2><p><${State} of=${r.state} /> <span class="dim">${r.ended ? html`ended ${when(r.ended, now.value)}` : html`for <${Age} since=${r.started} />`}</span></p>
      ${r.recipe || r.folder ? html`<p class="dim"><code>${r.recipe}</code>${r.folder ? html` in <code>${r.folder}</code>` : null}</p>` : null}</div>
    ${r.progress ? html`<div class="progress"><${Progress} of=${r} /></div>` : null}
    <dl class="figures">${inOrder(/** @type {any[]} */ (r.facts)).map((f) => html`<div key=${f.name}><dt title=${f.name}>${f.name}</dt><dd title=${value(f.value, f.unit)}>${value(f.value, f.unit)}</dd></div>`)}</dl></div>`;
}
