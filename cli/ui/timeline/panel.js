// Under the lanes: sums of an area, spans as rows, or one trace as a waterfall. The text twin of the canvas.
// @ts-check
import { html, useState } from '../vendor/preact.js';
import { get } from '../api.js';
import { usePolled } from '../drawer/detail.js';
import { capital, clockMs, count, plural, span } from '../format.js';
import { patch } from '../route.js';
import { Shape } from '../view/glyph.js';
import { Toggle } from '../view/part.js';
import { Spans } from '../view/spans.js';
import { Empty, View } from '../view/states.js';
import { Table, numbers } from '../view/table.js';
import { Trace } from './trace.js';
import { keptSince } from './window.js';

const spansMost = 500;

/** @param {{ t: any, panel: string, trace: string | undefined }} props */
export function Panel({ t, panel, trace }) {
  const area = t.area ?? t.view;
  const gone = keptSince(t.chunk, area.from);
  const what = t.area ? `${span(area.to - area.from)} from ${clockMs(area.from)}` : `what is in view, ${span(area.to - area.from)}`;
  return html`<section class="panel" aria-label="Below the timeline">
    <header class="rule">${['sums', 'spans', 'trace'].map((id) => html`<${Toggle} key=${id} on=${panel === id} onClick=${() => patch({ panel: id })}>${capital(id)}<//>`)}
      <span class="note">${panel === 'trace' ? trace ?? '' : what}${gone && panel !== 'trace' ? html`; <span class="tone-waiting">${gone}</span>` : null}</span><span class="grow" />
      <button class="icon" aria-label="Close the panel" onClick=${() => patch({ panel: null })}><${Shape} of="cross" /></button></header>
    <div class="panel-body">${panel === 'sums' ? html`<${Sums} t=${t} />` : panel === 'spans' ? html`<${List} t=${t} />` : html`<${Trace} t=${t} trace=${trace} />`}</div></section>`;
}

/** The window that is asked about: fixed for an area, otherwise the one at the time of asking. @param {any} t */
function asked(t) {
  const a = t.area ?? t.view;
  const lanes = t.area ? t.placed.filter((p) => p.top >= t.area.top && p.top < t.area.bottom).map((p) => p.lane.id) : [];
  if (lanes.length && lanes.length < t.placed.length) return { from: a.from, to: a.to, lanes: lanes.slice(0, 60).join(',') };
  return { from: a.from, to: a.to, lanes: withoutOwn(t) };
}

/** The processes in sight, where those of the runtime itself are hidden beside them. @param {any} t */
function withoutOwn(t) {
  const lanes = t.placed.map((p) => p.lane);
  if (!t.hides || lanes.some((l) => l.kind === 'node' && !l.open)) return undefined;
  return lanes.filter((l) => l.kind === 'process').map((l) => l.id).slice(0, 120).join(',') || undefined;
}

/** @param {string} path @param {any} t @param {any} [more] */
function useAsked(path, t, more) {
  const coarse = (t.view.to - t.view.from) / 8;
  const key = t.area ? JSON.stringify(t.area) : `${Math.floor(t.view.from / coarse)} ${Math.round(t.view.to - t.view.from)}`;
  const ask = async (/** @type {AbortSignal} */ signal) => {
    await new Promise((done) => setTimeout(done, 120));
    signal.throwIfAborted();
    return (await get(path, { ...asked(t), ...more }, signal)).data;
  };
  return usePolled(key, ask, Infinity, path);
}

/** @type {import('../types').Column[]} */
const columns = [
  { id: 'name', title: 'Name', width: 'minmax(150px, 2fr)', sort: (r) => r.name, cell: (r) => html`<span class="name">${r.name}</span>` },
  { id: 'kind', title: 'Kind', width: '96px', sort: (r) => r.kind, cell: (r) => html`<span class="swatch k-${r.kind}" /> <span class="dim">${r.kind}</span>` },
  numbers('count', 'Count', '92px', (r) => r.count),
  ...['total', 'self', 'p50', 'p99'].map((id) => numbers(`${id}_ms`, id[0] === 'p' ? id : capital(id), '92px', (r) => r[`${id}_ms`], span)),
  numbers('failed', 'Failed', '76px', (r) => r.failed, count, (r) => (r.failed ? 'tone-failed' : 'dim')),
];

/** @param {{ t: any }} props */
function Sums({ t }) {
  const is = useAsked('inspect/aggregate', t);
  const [sort, setSort] = useState('-total_ms');
  const rows = is.data?.rows ?? [];
  return html`<${View} of=${is} again=${is.again} isEmpty=${!rows.length} empty=${html`<${Empty} title="No spans here" why="Nothing ran in this area, or it was not kept." />`}>
    <${Table} label="Sums by name" columns=${columns} rows=${rows} keyOf=${(r) => `${r.name} ${r.kind}`} sort=${sort} onSort=${setSort} /><//>`;
}

/** @param {{ t: any }} props */
function List({ t }) {
  const is = useAsked('inspect/spans', t, { limit: spansMost });
  const spans = is.data?.spans ?? [];
  return html`<${View} of=${is} again=${is.again} isEmpty=${!spans.length} empty=${html`<${Empty} title="No spans here" why="Nothing ran in this window, or it was not kept." />`}>
    <div class="pad">${spans.length >= spansMost ? html`<p class="tone-waiting">The first ${plural(spans.length, 'span')}; look at less time to see the rest.</p>` : html`<p class="dim">${plural(spans.length, 'span')}</p>`}
    <${Spans} of=${spans} label="Spans in view" actor=${true} /></div><//>`;
}
