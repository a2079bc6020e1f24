// One trace: a waterfall with its critical path, or its self time by name.
// @ts-check
import { html, useState } from '../vendor/preact.js';
import { get } from '../api.js';
import { usePolled } from '../drawer/detail.js';
import { plural, span } from '../format.js';
import { State } from '../view/glyph.js';
import { Link, Toggle, toward } from '../view/part.js';
import { Empty, View } from '../view/states.js';
import { flame, rows } from './waterfall.js';

/** @param {{ t: any, trace: string | undefined }} props */
export function Trace({ t, trace }) {
  const is = usePolled(trace ?? '', async (signal) => (trace ? (await get(`inspect/traces/${encodeURIComponent(trace)}`, {}, signal)).data : null));
  const [only, setOnly] = useState(false);
  const [self, setSelf] = useState(false);
  if (!trace) return html`<${Empty} title="No trace is chosen" why="Select a span, then press P: its whole trace comes here, with the path that decided how long it took." />`;
  const critical = new Set(is.data?.critical ?? []);
  const all = is.data ? rows(is.data.spans) : [];
  const shown = only ? all.filter((r) => critical.has(r.span.id)) : all;
  return html`<${View} of=${is} again=${is.again} isEmpty=${!all.length} empty=${html`<${Empty} title="The trace is gone" why="Its spans were not kept." />`}>
    <div class="pad"><p class="spread"><${Toggle} on=${only} onClick=${() => setOnly(!only)}>Only the critical path<//><${Toggle} on=${self} onClick=${() => setSelf(!self)}>Self time<//>
      <span class="dim">${plural(all.length, 'span')}, ${critical.size} on the critical path${is.data?.lost ? html`, <span class="tone-waiting">${is.data.lost} lost</span>` : ''}</span></p>
      ${self ? html`<${Self} of=${flame(shown)} />` : html`<${Falls} of=${shown} critical=${critical} selected=${t.selected} />`}</div><//>`;
}

/** @param {{ of: any[], critical: Set<string>, selected: string | null }} props */
function Falls({ of, critical, selected }) {
  const from = Math.min(...of.map((r) => r.span.start));
  const to = Math.max(...of.map((r) => r.span.end ?? r.span.start), from + 0.001);
  const share = (/** @type {number} */ v) => `${(v / (to - from)) * 100}%`;
  return html`<ol class="falls" aria-label="Waterfall">${of.map(({ span: s, depth, self }) => html`<li key=${s.id} class="${critical.has(s.id) ? 'on' : 'off'} ${s.id === selected ? 'chosen' : ''}">
    <span class="who" style=${{ paddingLeft: `${depth * 12}px` }}>${s.ok ? null : html`<${State} of="failed" bare=${true} /> `}<a class="thing" href=${toward({ kind: 'span', id: s.id })}>${s.name}</a> <${Link} to=${s.actor} /></span>
    <span class="track"><span class="swatch k-${s.kind} ${s.ok ? '' : 'bad'}" style=${{ left: share(s.start - from), width: `max(2px, ${share((s.end ?? to) - s.start)})` }} /></span>
    <span class="num took" title=${`by itself ${span(self)}`}>${s.end === null ? 'going' : span(s.end - s.start)}${critical.has(s.id) ? html`<span class="hidden"> on the critical path</span>` : null}</span></li>`)}</ol>`;
}

/** @param {{ of: any[] }} props */
function Self({ of }) {
  const all = Math.max(0.001, of.reduce((n, r) => n + r.self, 0));
  return html`<ol class="falls" aria-label="Self time by name">${of.map((r) => html`<li key=${r.name + r.kind} class="on"><span class="who">${r.name} <span class="dim">${r.kind}, ${plural(r.count, 'time')}</span></span>
    <span class="track"><span class="swatch k-${r.kind}" style=${{ left: '0', width: `${(r.self / all) * 100}%` }} /></span><span class="num took">${span(r.self)}</span></li>`)}</ol>`;
}
