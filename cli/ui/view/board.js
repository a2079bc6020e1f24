// Who has which weights: rows are ranks, columns are versions; over it, the tree that the bytes took.
// @ts-check
import { html } from '../vendor/preact.js';
import { measured, percent, speed as said } from '../format.js';
import { Link, Measured, Section, Wide } from './part.js';

const words = { none: 'nothing yet', receiving: 'receiving', whole: 'whole', used: 'in use' };

export function Board({ of: b }) {
  const done = b.versions.map((/** @type {number} */ _, /** @type {number} */ i) => b.rows.filter((r) => ['whole', 'used'].includes(r.cells[i]?.state)).length);
  const last = b.versions.length - 1;
  return html`<${Section} title=${b.name} note=${last < 0 ? '' : `version ${b.versions[last]}: ${done[last]} of ${b.rows.length} have it whole`}>
    ${b.edges.length ? html`<${Tree} of=${b} />` : null}
    <${Wide} label=${`Versions of ${b.name}`}><table class="board" aria-label=${`Versions of ${b.name}`}><thead><tr><th scope="col">holder</th>${b.versions.map((v) => html`<th scope="col" key=${v}>${v}</th>`)}</tr></thead>
      <tbody>${b.rows.map((r, i) => html`<tr key=${i}><th scope="row">${r.subject ? html`<${Link} to=${r.subject} word=${r.name} />` : r.name}</th>${r.cells.map((c, j) => html`<${Cell} key=${j} of=${c} />`)}</tr>`)}</tbody></table><//>
    <p class="legend dim">${Object.entries(words).map(([s, w]) => html`<span key=${s}><span class="vcell ${s} sample"><span class="fill" style=${{ width: '60%' }} /></span> ${w}</span>`)}</p><//>`;
}

/** @param {{ of: { state: string, share: number } }} props */
function Cell({ of: c }) {
  const word = words[c.state] ?? c.state;
  const text = c.state === 'receiving' ? percent(c.share) : '';
  return html`<td title=${`${word} ${text}`}><span class="vcell ${c.state}"><span class="fill" style=${{ width: c.state === 'receiving' ? `${c.share * 100}%` : '100%' }} /><span class="hidden">${word} </span><b>${text}</b></span></td>`;
}

/** Places of the holders: depth from the source, and a lane each. @param {any} b */
export function layout(b) {
  /** @type {Map<number, number[]>} */
  const under = new Map();
  for (const e of b.edges) under.set(e.from, [...(under.get(e.from) ?? []), e.to]);
  /** @type {Map<number, { depth: number, lane: number }>} */
  const places = new Map();
  let lane = 0;
  const put = (/** @type {number} */ at, /** @type {number} */ depth) => {
    if (places.has(at)) return;
    places.set(at, { depth, lane: 0 });
    const children = (under.get(at) ?? []).filter((c) => !places.has(c));
    if (!children.length) {
      places.set(at, { depth, lane });
      lane += 1;
      return;
    }
    for (const c of children) put(c, depth + 1);
    const lanes = children.map((c) => places.get(c)?.lane ?? 0);
    places.set(at, { depth, lane: (Math.min(...lanes) + Math.max(...lanes)) / 2 });
  };
  put(-1, 0);
  return { places, lanes: Math.max(1, lane) };
}

/** Left to right: the source, then whom it feeds; the straggler is bold. @param {{ of: any }} props */
function Tree({ of: b }) {
  const { places, lanes } = layout(b);
  const deep = Math.max(1, ...[...places.values()].map((p) => p.depth));
  const row = 24;
  const x = (p) => 8 + p.depth * step;
  const y = (p) => 14 + p.lane * row;
  const unmeasured = b.edges.every((e) => typeof e.gb_per_s !== 'number') ? b.edges[0]?.gb_per_s?.missing : null;
  const [step, room] = unmeasured ? [210, 4] : [300, 74];
  const nameOf = (/** @type {number} */ i) => (i < 0 ? b.source.name : b.rows[i]?.name ?? '?');
  const edges = b.edges.filter((e) => places.has(e.from) && places.has(e.to));
  const slow = edges.filter((e) => e.straggler).map((e) => nameOf(e.to));
  return html`<${Wide} label="The way of the bytes"><svg class="flow" width=${deep * step + 190} height=${lanes * row + 8} role="img" aria-label=${`${nameOf(-1)} feeds ${b.rows.length} holders${slow.length ? `; slow: ${slow.join(', ')}` : ''}`}>
    ${edges.map((e, /** @type {number} */ i) => {
      const [p, q] = [places.get(e.from), places.get(e.to)];
      const speed = measured(e.gb_per_s, said);
      const [x1, y1, x2, y2] = [x(p) + 116, y(p), x(q) - room, y(q)];
      return html`<g key=${i} class=${e.straggler ? 'slow' : ''}><path d=${`M${x1} ${y1}C${x1 + 34} ${y1} ${x2 - 34} ${y2} ${x2} ${y2}`} /><text class="speed" x=${x(q) - 6} y=${y2 + 4}>${unmeasured ? '' : speed.text}</text></g>`;
    })}
    ${[...places].map(([i, p]) => html`<text key=${i} class=${edges.some((e) => e.to === i && e.straggler) ? 'slow' : ''} x=${x(p)} y=${y(p) + 4}>${clip(nameOf(i))}</text>`)}
  </svg><//>${slow.length ? html`<p class="tone-waiting">Slow: <b>${slow.join(', ')}</b>, less than half as fast as the median.</p>` : null}${unmeasured ? html`<p class="dim">No speeds: ${unmeasured}.</p>` : null}`;
}

/** The end of a name tells more than its beginning. @param {string} s */
const clip = (s) => (s.length > 17 ? `…${s.slice(-16)}` : s);

export const Speed = ({ of }) => html`<${Measured} of=${of} show=${said} />`;
