// What runs where: nodes, their devices, and the links between them.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, measured, percent, plural, span } from '../format.js';
import { useKeys } from '../keys.js';
import { narrow } from '../prefs.js';
import { patch, route, select, selected, sortBy } from '../route.js';
import { useView } from '../stream.js';
import { Bar, Choice } from '../view/filterbox.js';
import { State } from '../view/glyph.js';
import { Links } from '../view/links.js';
import { DeviceCell, Legend, Usage, isDown } from '../view/nodes.js';
import { Age, Link, Measured, Section, Toggle, Wide, none } from '../view/part.js';
import { Empty, View } from '../view/states.js';
import { Table, numbers } from '../view/table.js';

export function Cluster() {
  const is = useView({ view: 'cluster' });
  const { params } = route.value;
  const links = params.links === '1';
  const nodes = is.data?.nodes ?? [];
  const by = params.g ?? '';
  useKeys([{ keys: ['l'], does: 'Links', run: () => patch({ links: links ? null : '1' }) }], [links]);
  const labels = [...new Set(nodes.flatMap((n) => Object.keys(n.labels ?? {})))];
  return html`<${Bar} title="Cluster" note=${is.data ? `${plural(nodes.length, 'node')}, ${plural(sum(nodes, (n) => n.devices.length), 'GPU')}` : ''}>
      ${labels.length ? html`<${Choice} label="Group" at=${by} of=${[['', 'none'], ...labels.map((l) => [l, l])]} set=${(v) => patch({ g: v })} />` : null}
      <${Toggle} on=${links} onClick=${() => patch({ links: links ? null : '1' })} title="Links (l)">Links<//>
    <//>
    <${View} of=${is} isEmpty=${!nodes.length} empty=${html`<${Empty} title="No node has joined" why="A machine becomes a cluster, others join it." command="odeon up" />`}>
      <div class="page cluster">
        ${groups(nodes, by).map(([name, some]) => html`<${Group} key=${name} name=${name} nodes=${some} />`)}
        ${nodes.some((n) => n.devices.length) ? html`<${Legend} />` : null}
        ${links ? html`<${Matrix} nodes=${nodes} links=${is.data?.links ?? []} />` : null}
      </div><//>`;
}

const sum = (/** @type {any[]} */ all, /** @type {(x: any) => number} */ of) => all.reduce((n, x) => n + of(x), 0);

/** @param {any[]} nodes @param {string} by @returns {[string, any[]][]} */
function groups(nodes, by) {
  if (!by) return [['', nodes]];
  /** @type {Map<string, any[]>} */
  const all = new Map();
  for (const n of nodes) {
    const key = n.labels?.[by] ?? `without ${by}`;
    all.set(key, [...(all.get(key) ?? []), n]);
  }
  return [...all].sort(([a], [b]) => a.localeCompare(b));
}

/** The columns, as wide as what stands in them; what is measured of a node that is down is what it was. @param {any[]} nodes @returns {import('../types').Column[]} */
function columnsOf(nodes) {
  const letters = Math.max(...nodes.map((n) => n.name.length + (n.leads ? 8 : 0)));
  const gpus = Math.max(...nodes.map((n) => n.devices.length));
  const usual = narrow() ? 150 : 320;
  return [
    { id: 'name', title: 'Node', width: `minmax(${Math.round(Math.min(usual, Math.max(88, 30 + letters * 7.5)))}px, 0.7fr)`, sort: (n) => n.name, cell: (n) => html`<span class="name" title=${n.name}>${n.name}</span>${n.leads ? html` <span class="dim" title="leads the cluster">leads</span>` : null}` },
    { id: 'state', title: 'State', width: narrow() ? '118px' : '142px', sort: (n) => ['down', 'suspect', 'refused', 'draining', 'up'].indexOf(n.state), cell: (n) => html`<${State} of=${n.state} /> <span class="dim"><${Age} since=${n.since} /></span>` },
    { id: 'cpu', title: 'CPU', width: nodes.some(isDown) ? '112px' : '88px', right: true, sort: (n) => (typeof n.cpu === 'number' ? n.cpu : null), cell: (n) => html`<span class="num"><${Measured} of=${n.cpu} show=${percent} gone=${isDown(n)} /> <span class="dim">of ${n.cores}</span></span>` },
    { id: 'memory', title: 'Memory', width: '212px', sort: (n) => (typeof n.memory.used === 'number' ? n.memory.used / n.memory.total : null), cell: (n) => html`<${Usage} of=${n.memory} gone=${isDown(n)} />` },
    { id: 'gpus', title: gpus ? 'GPUs: utilisation, actors, memory' : 'GPUs', width: gpus ? 'minmax(236px, 3fr)' : 'minmax(56px, 0.3fr)', cell: (n) => html`<span class="gpus">${n.devices.length ? n.devices.map((d) => html`<${DeviceCell} key=${d.id} of=${d} gone=${isDown(n)} />`) : none('this node has no devices')}</span>` },
    numbers('actors', 'Actors', '72px', (n) => n.actors),
    { id: 'rtt', title: 'Round trip', width: '84px', right: true, sort: (n) => (typeof n.rtt_us === 'number' ? n.rtt_us : null), cell: (n) => html`<${Measured} of=${n.rtt_us} show=${(us) => span(us / 1000)} />` },
    { id: 'clock', title: 'Clock', width: '132px', right: true, hint: 'offset and its error', cell: (n) => (n.clock && !isDown(n) ? html`<span class=${`num ${n.clock.error_us > 10_000 ? 'tone-waiting' : ''}`}>${span(n.clock.offset_us / 1000)} <span class="dim">±${span(n.clock.error_us / 1000)}</span></span>` : none(isDown(n) ? 'the node is down' : 'no measurement yet')) },
  ];
}

/** @param {{ name: string, nodes: any[] }} props */
function Group({ name, nodes }) {
  const sel = selected(route.value);
  const chosen = sel?.kind === 'node' ? sel.id : sel?.kind === 'device' ? sel.id.split('/')[0] : null;
  const table = html`<${Table} fit=${24} label=${name ? `Nodes of ${name}` : 'Nodes'} columns=${columnsOf(nodes)} rows=${nodes} keyOf=${(n) => n.name} sort=${route.value.params.sort ?? 'name'}
    onSort=${sortBy} selected=${chosen} onOpen=${(n) => select('node', n.name)} tone=${(n) => (n.state === 'down' ? 'is-failed' : '')} />`;
  return name ? html`<${Section} title=${name} note=${plural(nodes.length, 'node')}>${table}<//>` : table;
}

/** Who talks to whom: bytes per second, deeper is more. @param {{ nodes: any[], links: any[] }} props */
function Matrix({ nodes, links }) {
  const most = Math.max(1, ...links.map((l) => (typeof l.bytes_per_s === 'number' ? l.bytes_per_s : 0)));
  const at = new Map(links.map((l) => [`${l.from}\n${l.to}`, l]));
  const cell = (l) => {
    const flow = measured(l.bytes_per_s, (b) => `${bytes(b)}/s`);
    const share = typeof l.bytes_per_s === 'number' ? l.bytes_per_s / most : 0;
    return html`<span class="lcell" title=${`${l.from} to ${l.to}, ${l.kind}: ${flow.why ?? flow.text}, resumed ${l.resumed}`}><span class="fill" style=${{ opacity: String(0.06 + share * 0.34) }} /><b>${flow.text}</b> <i class="dim">${l.kind === 'network' ? 'E' : 'S'}</i></span>`;
  };
  if (!links.length) return html`<${Section} title="Links"><p class="dim">No links: one node, or nobody has talked yet.</p><//>`;
  return html`<${Section} title="Links" note="from the row to the column; E network, S socket">
    ${nodes.length <= 16 ? html`<${Wide} label="Link matrix"><table class="matrix" aria-label="Bytes per second between nodes"><thead><tr><th scope="col">from</th>${nodes.map((n) => html`<th scope="col" key=${n.name}>${n.name}</th>`)}</tr></thead>
      <tbody>${nodes.map((n) => html`<tr key=${n.name}><th scope="row"><${Link} node=${n.name} /></th>${nodes.map((m) => {
        const l = at.get(`${n.name}\n${m.name}`);
        return html`<td key=${m.name}>${l ? cell(l) : html`<span class="dim">·</span>`}</td>`;
      })}</tr>`)}</tbody></table><//>` : null}
    <${Links} of=${links} /><//>`;
}
