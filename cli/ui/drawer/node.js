// A node: its devices, processes, links, and what runs on it.
// @ts-check
import { html } from '../vendor/preact.js';
import { count, percent, plural, span } from '../format.js';
import { system } from '../prefs.js';
import { href } from '../route.js';
import { Few } from '../view/actorrow.js';
import { EventLines } from '../view/eventline.js';
import { State } from '../view/glyph.js';
import { Links } from '../view/links.js';
import { DeviceCell, Usage, isDown } from '../view/nodes.js';
import { Age, Facts, Measured, Section } from '../view/part.js';
import { DeadLetters, Processes } from '../view/processes.js';
import { Series } from '../view/spark.js';
import { Title } from './title.js';

/** @param {{ of: any }} props */
export function NodeBody({ of: d }) {
  const n = d.node ?? d;
  const some = (d.actors ?? []).filter((/** @type {any} */ r) => !r.system || system.value === 'on');
  const series = Object.values(d.series ?? {}).filter(Boolean);
  return html`<${Title} sign=${html`<${State} of=${n.state} />`} title=${n.name} sub=${isDown(n) ? html`for <${Age} since=${n.since} />; its numbers are those of when it was last seen` : html`for <${Age} since=${n.since} />`} />
    <${Facts} of=${facts(n)} />
    ${series.length ? html`<div class="rates">${series.map((s) => html`<${Series} key=${s.name} of=${s} gone=${isDown(n)} />`)}</div>` : null}
    ${n.devices.length ? html`<${Section} title="Devices" note=${count(n.devices.length)}><div class="gpus">${n.devices.map((g) => html`<${DeviceCell} key=${g.id} of=${g} gone=${isDown(n)} />`)}</div><//>` : null}
    ${n.processes?.length ? html`<${Section} title="Processes" note=${count(n.processes.length)}><${Processes} of=${n.processes} /><//>` : null}
    ${d.links?.length ? html`<${Section} title="Links"><${Links} of=${d.links} /><//>` : null}
    ${some.length ? html`<${Section} title="Actors" note=${n.actors > some.length ? html`<a href=${href('actors', { f: `node:${n.name}` })}>all ${count(n.actors)}</a>` : count(some.length)}><${Few} rows=${some} label="Actors here" /><//>` : null}
    ${d.events?.length ? html`<${Section} title="Events"><${EventLines} of=${[...d.events].reverse()} label="Events of the node" /><//>` : null}`;
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
    ['clock', isDown(n) ? null : n.clock ? `${span(n.clock.offset_us / 1000)} off, ±${span(n.clock.error_us / 1000)}` : html`<span class="missing" title="no measurement yet">-</span>`],
    ['round trip', html`<${Measured} of=${n.rtt_us} show=${(/** @type {number} */ us) => span(us / 1000)} />`],
    ['labels', labels.length ? labels.map(([k, v]) => `${k}=${v}`).join('  ') : null],
  ];
}
