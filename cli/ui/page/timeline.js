// Where time went: live lanes, spans, flows, sums.
// @ts-check
import { html, useEffect, useState } from '../vendor/preact.js';
import { failure, get, url, words } from '../api.js';
import { capital, span } from '../format.js';
import { useKeys } from '../keys.js';
import { panelHeight } from '../prefs.js';
import { patch, route, select } from '../route.js';
import { about, conn, head } from '../store.js';
import { beside, find } from '../timeline/lanes.js';
import { kinds } from '../timeline/paint.js';
import { Panel } from '../timeline/panel.js';
import { Timeline, useTimeline } from '../timeline/timeline.js';
import { centre, fit, keptSince, pan, zoom } from '../timeline/window.js';
import { Bar, FilterBox } from '../view/filterbox.js';
import { Empty } from '../view/states.js';
import { Toggle } from '../view/part.js';

export function TimelinePage() {
  const of = useTimeline();
  const { t, live, again } = of;
  const { panel, trace } = route.value.params;
  useKeys(keysOf(of), []);
  useEffect(() => {
    const [from, to] = (route.peek().params.area ?? '').split(',').map(Number);
    if (to) t.area = { from, to, top: 0, bottom: 1e9 };
  }, []);
  const onArea = (a) => {
    patch({ panel: 'sums', area: `${a.from.toFixed(3)},${a.to.toFixed(3)}` });
    again();
  };
  const following = t.follow && conn.value.phase === 'live';
  const bare = t.chunk && !t.chunk.lanes.length;
  const gone = keptSince(t.chunk, t.view.from);
  return html`<${Bar} title="Timeline" note=${span(t.view.to - t.view.from)}>
      <${FilterBox} hint="an actor's name, type or id" words=${[]} values=${{}} />
      <${Toggle} on=${following} onClick=${live} title="Follow what happens now (End)">${head.value?.replay ? 'Follow' : t.follow ? 'Live' : 'Go live'}<//>
      <span class="choice" role="group" aria-label="Panel">${Object.entries({ sums: 'Sums', spans: 'List spans in view' }).map(([id, word]) => html`<${Toggle} key=${id} on=${panel === id} onClick=${() => patch({ panel: panel === id ? null : id })}>${word}<//>`)}</span>
      <${Export} t=${t} />
      <span class="kinds dim">${kinds.map((k) => html`<span key=${k}><span class="swatch k-${k}" /> ${k}</span>`)}</span>
    <//>
    ${bare ? html`<${Bare} filter=${t.filter} gone=${gone} />` : null}
    <div class="stage" hidden=${bare}><${Timeline} of=${of} onArea=${onArea} /></div>
    ${panel ? html`<div class="below-stage" style=${{ '--panel': `${panelHeight.value}px` }}><${Panel} t=${t} panel=${panel} trace=${trace} /></div>` : null}`;
}

/** Why there are no lanes. @param {{ filter: string, gone: string }} props */
function Bare({ filter, gone }) {
  if (filter) return html`<${Empty} title="No lane matches" why=${html`No actor is called <code>${filter}</code>.`} />`;
  if (gone) return html`<${Empty} title="Nothing is kept of this time" why=${`${capital(gone)}.`} />`;
  const any = head.value?.actors.all;
  return html`<${Empty} title=${any ? 'Nothing ran in this time' : 'Nothing has run yet'} why="Spans appear here as actors handle messages." run=${!any} />`;
}

/** What is in view, as a file. @param {{ t: any }} props */
function Export({ t }) {
  const [why, setWhy] = useState('');
  const to = async (/** @type {string} */ format, /** @type {string} */ name) => {
    setWhy('');
    const a = t.area ?? t.view;
    try {
      const response = await fetch(url('inspect/export', { from: a.from, to: a.to, format }));
      if (!response.ok) throw await failure(response);
      const link = document.createElement('a');
      link.href = URL.createObjectURL(await response.blob());
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    } catch (error) {
      setWhy(words(error));
    }
  };
  if (about.value?.exported) return null;
  return html`<span class="choice" role="group" aria-label="Export"><button class="chip" onClick=${() => to('chrome', 'odeon-trace.json')} title="Chrome trace of what is in view; opens in Perfetto">Trace file</button>
    <button class="chip" onClick=${() => to('html', 'odeon.html')} title="These pages with what is in view, as one file that opens without a server">Page</button>
    ${why ? html`<span class="tone-failed" role="alert">${why}</span>` : null}</span>`;
}

/** @param {ReturnType<typeof useTimeline>} of */
function keysOf({ t, look, live, again }) {
  let last = 0;
  const around = () => (t.follow ? 1 : 0.5);
  const step = (/** @type {number} */ by) => {
    const here = t.selected ? find(t.placed, t.selected) : null;
    const lane = here?.placed.lane ?? t.placed.find((p) => p.lane.spans?.length)?.lane;
    const next = lane && beside(lane, t.selected ?? '', by);
    if (!next) return;
    select('span', next[0]);
    const start = t.chunk.from + next[1];
    if (start < t.view.from || start > t.view.to) look(centre(t.view, start));
  };
  const focus = () => {
    const s = t.detail?.span;
    const a = s ? { from: s.start, to: s.end ?? t.edge } : t.area;
    if (!a) return;
    look(Date.now() - last < 1500 ? fit(a.from, a.to) : centre(t.view, (a.from + a.to) / 2));
    last = Date.now();
  };
  return [
    { keys: ['w'], does: 'Zoom in', run: () => look(zoom(t.view, 0.7, around())) },
    { keys: ['s'], does: 'Zoom out', run: () => look(zoom(t.view, 1 / 0.7, around())) },
    { keys: ['a'], does: 'Earlier', run: () => look(pan(t.view, -0.2)) },
    { keys: ['d'], does: 'Later', run: () => look(pan(t.view, 0.2)) },
    { keys: ['F'], does: 'Centre what is selected; again: fit it', run: focus },
    { keys: [',', '.'], does: 'Previous, next span of the lane', run: (/** @type {string} */ key) => step(key === '.' ? 1 : -1) },
    { keys: ['['], does: 'Its cause', run: () => t.detail?.cause && select('span', t.detail.cause.id) },
    { keys: [']'], does: 'Its first effect', run: () => t.detail?.effects[0] && select('span', t.detail.effects[0].id) },
    { keys: ['P'], does: 'Critical path of its trace', run: () => critical(t, again) },
    { keys: ['End'], does: 'Live', run: live },
  ];
}

/** @param {any} t @param {() => void} again */
async function critical(t, again) {
  const span_ = t.detail?.span;
  if (!span_) return patch({ panel: 'trace' });
  if (t.critical) {
    t.critical = null;
    return again();
  }
  patch({ panel: 'trace', trace: span_.trace });
  const data = (await get(`inspect/traces/${encodeURIComponent(span_.trace)}`).catch(() => null))?.data;
  t.critical = data ? new Set(data.critical) : null;
  return again();
}
