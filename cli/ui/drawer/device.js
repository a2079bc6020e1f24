// A device: who holds it, who owns its bytes, how busy it was.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, digits, percent } from '../format.js';
import { Actors } from '../view/actorrow.js';
import { State } from '../view/glyph.js';
import { Usage, idle, known } from '../view/nodes.js';
import { Bar, Facts, Link, Measured, Rows, Section } from '../view/part.js';
import { AllSeries } from '../view/spark.js';
import { Title } from './title.js';

export function DeviceBody({ of: d }) {
  const g = d.device ?? d;
  const held = (/** @type {any} */ o) => known(o.bytes) ?? 0;
  const owned = g.owners.reduce((/** @type {number} */ sum, o) => sum + held(o), 0);
  return html`<${Title} state=${g.state} title=${g.id} sub=${g.name} />
    ${idle(g) ? html`<p class="waits"><${State} of="waiting" word="Idle" /> Leased, and nothing uses it.</p>` : null}
    <${Facts} of=${[
      ['node', html`<${Link} node=${g.node} />`],
      ['kind', g.kind === 'fake' ? 'fake: for trying things, not a device' : g.kind],
      ['utilisation', html`<${Measured} of=${g.utilisation} show=${percent} />`],
      ['memory', html`<${Usage} of=${g.memory} />`],
      ['power', html`<${Measured} of=${g.power_w} show=${(w) => `${digits(w)} W`} />`],
      ['temperature', html`<${Measured} of=${g.temperature} show=${(t) => `${digits(t)} °C`} />`],
    ]} />
    <${AllSeries} of=${d.series} />
    <${Section} title="Leases">${g.leases.length ? html`<${Rows} label="Leases" head=${['holder', 'share']} right=${[1]} rows=${g.leases.map((l) => [html`<${Link} to=${l.holder} />`, percent(l.share)])} />` : html`<p class="dim">Nobody has reserved it.</p>`}<//>
    <${Section} title="Owners of its memory" note=${g.owners.length ? bytes(owned) : ''}>${g.owners.length ? html`<${Rows} label="Owners of its memory" head=${['owner', 'share', 'bytes']} right=${[2]}
      rows=${[...g.owners].sort((a, b) => held(b) - held(a)).map((o) => [o.subject ? html`<${Link} to=${o.subject} word=${o.name} />` : html`<span class="dim">${o.name}</span>`, html`<${Bar} share=${g.memory.total ? held(o) / g.memory.total : 0} />`, html`<${Measured} of=${o.bytes} show=${bytes} />`])} />` : html`<p class="dim">Nothing of ours is on it.</p>`}<//>
    <${Actors} rows=${d.actors} all=${g.actors} f=${`device:${g.id}`} label="Actors on it" />`;
}
