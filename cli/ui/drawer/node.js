// A node: its devices, processes, links, and what runs on it.
// @ts-check
import { html } from '../vendor/preact.js';
import { count, percent, plural, span } from '../format.js';
import { system } from '../prefs.js';
import { Actors } from '../view/actorrow.js';
import { Happened } from '../view/eventline.js';
import { Links } from '../view/links.js';
import { DeviceCell, Usage, isDown } from '../view/nodes.js';
import { Age, Facts, Measured, Section, none } from '../view/part.js';
import { DeadLetters, Processes } from '../view/processes.js';
import { AllSeries } from '../view/spark.js';
import { Title } from './title.js';

export function NodeBody({ of: d }) {
  const n = d.node ?? d;
  const some = (d.actors ?? []).filter((/** @type {any} */ r) => !r.system || system.value === 'on');
  return html`<${Title} state=${n.state} title=${n.name} sub=${isDown(n) ? html`for <${Age} since=${n.since} />; its numbers are those of when it was last seen` : html`for <${Age} since=${n.since} />`} />
    <${Facts} of=${facts(n)} />
    <${AllSeries} of=${d.series} gone=${isDown(n)} />
    ${n.devices.length ? html`<${Section} title="Devices" note=${count(n.devices.length)}><div class="gpus">${n.devices.map((g) => html`<${DeviceCell} key=${g.id} of=${g} gone=${isDown(n)} />`)}</div><//>` : null}
    ${n.processes?.length ? html`<${Section} title="Processes" note=${count(n.processes.length)}><${Processes} of=${n.processes} /><//>` : null}
    ${d.links?.length ? html`<${Section} title="Links"><${Links} of=${d.links} /><//>` : null}
    <${Actors} rows=${some} all=${n.actors} f=${`node:${n.name}`} label="Actors here" />
    <${Happened} of=${d.events} whose="the node" />`;
}

/** @param {any} n @returns {[string, any][]} */
function facts(n) {
  const labels = Object.entries(n.labels ?? {});
  const dead = n.processes.reduce((/** @type {number} */ sum, /** @type {any} */ p) => sum + p.dead_letters, 0);
  return [
    ['address', n.address ? html`<code>${n.address}</code>` : null],
    ['role', n.leads ? 'leads' : n.votes ? 'votes' : 'follows'],
    ['version', n.version],
    ['processor', html`<${Measured} of=${n.cpu} show=${percent} gone=${isDown(n)} /> of ${plural(n.cores, 'core')}`],
    ['memory', html`<${Usage} of=${n.memory} gone=${isDown(n)} />`],
    ['actors', count(n.actors)],
    ['dead letters', dead ? html`<${DeadLetters} of=${dead} />` : null],
    ['clock', isDown(n) ? null : n.clock ? `${span(n.clock.offset_us / 1000)} off, ±${span(n.clock.error_us / 1000)}` : none('no measurement yet')],
    ['round trip', html`<${Measured} of=${n.rtt_us} show=${(us) => span(us / 1000)} />`],
    ['labels', labels.length ? labels.map(([k, v]) => `${k}=${v}`).join('  ') : null],
  ];
}
