// Nodes and their GPUs in little room: fill is utilisation, the bar is memory, hatching is a lease that nobody uses.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, digits, measured, percent } from '../format.js';
import { Shape, State } from './glyph.js';
import { Bar, Link, Measured, toward } from './part.js';

/** @param {any} m @returns {number | null} */
export const known = (m) => (typeof m === 'number' ? m : null);

/** What a GPU is doing, in words. @param {any} d */
function describe(d) {
  const util = measured(d.utilisation, percent);
  const used = measured(d.memory.used, bytes);
  const heat = measured(d.temperature, (t) => `${digits(t)} °C`);
  const say = (/** @type {string} */ name, m) => `${name} ${m.why ? `- (${m.why})` : m.text}`;
  return `${d.id} ${d.name}: ${say('utilisation', util)}, ${say('memory', used)} of ${bytes(d.memory.total)}, ${say('temperature', heat)}, actors ${d.actors}${idle(d) ? ', reserved but idle' : ''}`;
}

/** A lease is held and nothing is used. @param {any} d */
export const idle = (d) => d.leases.length > 0 && (known(d.utilisation) ?? 1) < 0.01;

/** @param {any} n whether its numbers are those of when it was last seen */
export const isDown = (n) => n.state === 'down';

/** @param {{ of: any, tiny?: boolean, gone?: boolean }} props */
export function DeviceCell({ of: d, tiny, gone = false }) {
  const util = known(d.utilisation);
  const memory = known(d.memory.used);
  const hot = memory !== null && d.memory.total > 0 && memory / d.memory.total > 0.95;
  const text = util === null || gone ? '-' : `${Math.round(util * 100)}`;
  const words = `${gone ? 'when it was last seen: ' : ''}${describe(d)}`;
  return html`<a class="gpu ${tiny ? 'tiny' : ''} ${idle(d) ? 'hatched' : ''} ${d.state !== 'ok' ? 'bad' : ''}" href=${toward({ kind: 'device', id: d.id, name: d.name })} title=${words}>
    <span class="util" style=${{ width: `${gone ? 0 : (util ?? 0) * 100}%` }} />
    <span class="text">${d.state === 'ok' ? null : html`<${Shape} of=${d.state === 'faulty' ? 'cross' : 'half'} size=${10} />`}${tiny ? null : html`<b class=${util === null ? 'missing' : ''}>${text}</b>${d.actors ? html`<i>${d.actors}</i>` : null}`}<span class="hidden"> ${words}</span></span>
    <span class="mem ${hot ? 'tone-failed' : ''}" style=${{ width: `${gone || memory === null || !d.memory.total ? 0 : (memory / d.memory.total) * 100}%` }} /></a>`;
}

/** A node in one line, for the Now page. @param {{ of: any }} props */
export function Strip({ of: n }) {
  const used = n.devices.map((d) => known(d.utilisation)).filter((u) => u !== null);
  const gone = isDown(n);
  const mean = used.length && !gone ? percent(used.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0) / used.length) : '-';
  return html`<li class="strip ${n.state === 'down' ? 'is-over' : ''}"><span class="who"><${State} of=${n.state} bare=${n.state === 'up'} /> <${Link} node=${n.name} /></span>
    <span class="gpus">${n.devices.map((d) => html`<${DeviceCell} key=${d.id} of=${d} tiny=${true} gone=${gone} />`)}${n.devices.length ? null : html`<span class="dim">no devices</span>`}</span>
    <span class="num" title="mean utilisation of its GPUs">${n.devices.length ? html`gpu ${mean}` : null}</span>
    <span class="num" title="processor">${gone ? null : 'cpu '}<${Measured} of=${n.cpu} show=${percent} gone=${gone} /></span>
    <span class="memory" title=${`memory of ${bytes(n.memory.total)}`}><${Usage} of=${n.memory} bare=${true} gone=${gone} /></span></li>`;
}

/** @param {{ of: { used: any, total: number }, bare?: boolean, gone?: boolean }} props */
export function Usage({ of: m, bare, gone = false }) {
  const used = known(m.used);
  const share = used === null || !m.total ? 0 : used / m.total;
  if (gone) return html`<span class="num"><${Measured} of=${m.used} show=${bytes} gone=${true} /></span>`;
  return html`<${Bar} share=${share} tone=${share > 0.95 ? 'failed' : 'accent'} /> <span class="num"><${Measured} of=${m.used} show=${bytes} /> ${bare ? null : html`<span class="dim">of ${bytes(m.total)}</span>`}</span>`;
}

/** What the signs mean, in words. */
export function Legend() {
  return html`<p class="legend dim"><span class="gpu sample"><span class="util" style=${{ width: '60%' }} /></span> utilisation
    <span class="gpu sample hatched" /> leased, not used <span class="gpu sample"><span class="mem" style=${{ width: '70%' }} /></span> memory
    <span><b>-</b> not measured; point at it for the reason</span></p>`;
}
