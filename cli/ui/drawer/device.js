// A device: who holds it, who owns its bytes, how busy it was.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, count, digits, percent } from '../format.js';
import { Few } from '../view/actorrow.js';
import { State } from '../view/glyph.js';
import { Usage, idle, known } from '../view/nodes.js';
import { Bar, Facts, Link, Measured, Rows, Section } from '../view/part.js';
import { Series } from '../view/spark.js';
import { Title } from './title.js';

/** @param {{ of: any }} props */
export function DeviceBody({ of: d }) {
  const g = d.device ?? d;
  const series = Object.values(d.series ?? {}).filter(Boolean);
  const held = (/** @type {any} */ o) => known(o.bytes) ?? 0;
  const owned = g.owners.reduce((/** @type {number} */ sum, o) => sum + held(o), 0);
  return html`<${Title} sign=${html`<${State} of=${g.state} />`} title=${g.id} sub=${g.name} />
    ${idle(g) ? html`<p class="waits"><${State} of="waiting" word="Idle" /> Leased, and nothing uses it.</p>` : null}
    <${Facts} of=${[
      ['node', html`<${Link} to=${{ kind: 'node', id: g.node, name: g.node }} />`],
      ['kind', g.kind === 'fake' ? 'fake: for trying things, not a device' : g.kind],
      ['utilisation', html`<${Measured} of=${g.utilisation} show=${percent} />`],
      ['memory', html`<${Usage} of=${g.memory} />`],
      ['power', html`<${Measured} of=${g.power_w} show=${(/** @type {number} */ w) => `${digits(w)} W`} />`],
      ['temperature', html`<${Measured} of=${g.temperature} show=${(/** @type {number} */ t) => `${digits(t)} °C`} />`],
    ]} />
    ${series.length ? html`<div class="rates">${series.map((s) => html`<${Series} key=${s.name} of=${s} />`)}</div>` : null}
    <${Section} title="Leases">${g.leases.length ? html`<${Rows} label="Leases" head=${['holder', 'share']} right=${[1]} rows=${g.leases.map((l) => [html`<${Link} to=${l.holder} />`, percent(l.share)])} />` : html`<p class="dim">Nobody has reserved it.</p>`}<//>
    <${Section} title="Owners of its memory" note=${g.owners.length ? bytes(owned) : ''}>${g.owners.length ? html`<${Rows} label="Owners of its memory" head=${['owner', 'share', 'bytes']} right=${[2]}
      rows=${[...g.owners].sort((a, b) => held(b) - held(a)).map((o) => [o.subject ? html`<${Link} to=${o.subject} word=${o.name} />` : html`<span class="dim">${o.name}</span>`, html`<${Bar} share=${g.memory.total ? held(o) / g.memory.total : 0} />`, html`<${Measured} of=${o.bytes} show=${bytes} />`])} />` : html`<p class="dim">Nothing of ours is on it.</p>`}<//>
    ${d.actors?.length ? html`<${Section} title="Actors" note=${count(g.actors)}><${Few} rows=${d.actors} label="Actors on it" /><//>` : null}`;
}
