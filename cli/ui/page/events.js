// Failures, restarts, membership, jobs: one stream, the newest last.
// @ts-check
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from '../vendor/preact.js';
import { get } from '../api.js';
import { known } from '../drawer/detail.js';
import { ofEvents, parse, split, toggle } from '../filter.js';
import { count, when } from '../format.js';
import { useKeys } from '../keys.js';
import { narrow } from '../prefs.js';
import { patch, route, select } from '../route.js';
import { now, prependEvents } from '../store.js';
import { useView } from '../stream.js';
import { plainly, signOf, wordOf } from '../view/eventline.js';
import { Bar, FilterBox } from '../view/filterbox.js';
import { State } from '../view/glyph.js';
import { Link, Toggle } from '../view/part.js';
import { Empty, View } from '../view/states.js';
import { Table } from '../view/table.js';

const most = 1000;

export function Events() {
  const asked = route.value.params.f ?? '';
  const f = parse(asked, ofEvents).error ? '' : asked;
  const is = useView({ view: 'events', filter: f || undefined, limit: most });
  const events = is.data?.events ?? [];
  const words = split(f);
  return html`<${Bar} title="Events" note=${is.data ? count(events.length) : ''}>
      <${FilterBox} hint="severity:error subject:worker words" words=${['severity:error', 'severity:warning', 'subject:', '-kind:started']} values=${ofEvents} />
      <span class="choice" role="group" aria-label="Kinds">${ofEvents.kind.map((k) => html`<${Toggle} key=${k} on=${words.includes(`kind:${k}`)} onClick=${() => patch({ f: only(f, k) })}>${k}<//>`)}</span>
    <//>
    <${View} of=${is} isEmpty=${!events.length} empty=${html`<${Empty} title=${f ? 'No event matches' : 'Nothing has happened yet'} why=${f ? html`Nothing holds for <code>${f}</code>.` : 'Failures, restarts, nodes and jobs come here.'} run=${!f} />`}>
      <${Tail} events=${events} filter=${f} all=${!f && events.length >= (is.meta?.total ?? Infinity)} /><//>`;
}

/** One kind at a time; the same again takes it away. @param {string} f @param {string} kind */
function only(f, kind) {
  const rest = split(f).filter((w) => !w.startsWith('kind:') || w === `kind:${kind}`);
  return toggle(rest.join(' '), `kind:${kind}`);
}

const small = narrow();
/** @type {import('../types').Column[]} */
const columns = [
  { id: 'at', title: 'Time', width: small ? '94px' : '114px', cell: (e) => html`<time class="num dim">${e.cause === undefined ? when(e.at, now.peek()) : ''}</time>` },
  { id: 'kind', title: 'Kind', width: small ? '46px' : '96px', cell: (e) => (e.cause === undefined ? html`<${State} of=${signOf(e)} word=${wordOf(e)} bare=${small} />` : html`<span class="dim">because</span>`) },
  { id: 'subject', title: 'Subject', width: small ? 'minmax(84px, 0.6fr)' : 'minmax(120px, 0.6fr)', cell: (e) => (e.cause === undefined && e.subject ? html`<${Link} to=${e.subject} />` : null) },
  { id: 'what', title: 'What', width: 'minmax(136px, 3fr)', cell: (e) => html`<span title=${e.cause ?? e.sentence}>${e.cause ?? plainly(e)}</span>` },
];

/** @param {any} e */
const keyOf = (e) => (e.cause === undefined ? String(e.seq) : `${e.seq}.${e.line}`);

/** Follows the end as less +F does; scrolling up lets go of it. @param {{ events: any[], filter: string, all: boolean }} props */
function Tail({ events, filter, all }) {
  const [open, setOpen] = useState(() => new Set());
  const [seen, setSeen] = useState(/** @type {number | null} */ (null));
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const rows = useMemo(() => unfold(events, open), [events, open]);
  const last = events[events.length - 1]?.seq ?? 0;
  const fresh = seen === null ? 0 : events.filter((e) => e.seq > seen).length;
  const follow = () => setSeen(null);
  useLayoutEffect(() => {
    const el = box.current?.querySelector('.grid');
    if (el && seen === null) el.scrollTop = el.scrollHeight;
  }, [rows, seen]);
  useEffect(() => {
    const el = box.current?.querySelector('.grid');
    const read = () => {
      if (!el) return;
      const end = el.scrollHeight - el.scrollTop - el.clientHeight < 40;
      setSeen((old) => (end ? null : old ?? last));
    };
    el?.addEventListener('scroll', read, { passive: true });
    return () => el?.removeEventListener('scroll', read);
  }, [last]);
  useKeys([{ keys: ['G', 'End'], does: 'Follow the end', run: follow }], []);
  const tree = {
    level: (e) => (e.cause === undefined ? 0 : 1),
    open: (e) => (e.cause === undefined && e.chain?.length ? open.has(e.seq) : null),
    fold: (e, /** @type {boolean} */ on) => setOpen((old) => new Set(on ? [...old, e.seq] : [...old].filter((s) => s !== e.seq))),
  };
  const show = (e) => {
    if (tree.open(e) !== null) tree.fold(e, !open.has(e.seq));
    else if (e.subject && e.cause === undefined && known(e.subject.kind)) select(e.subject.kind, e.subject.id);
  };
  return html`<div class="tail" ref=${box}>
    ${all ? null : html`<${Older} first=${events[0]?.seq} filter=${filter} />`}
    <${Table} label="Events" columns=${columns} rows=${rows} keyOf=${keyOf} tree=${tree} onOpen=${show} tone=${(e) => (e.severity === 'error' ? 'is-failed' : '')} />
    ${seen !== null ? html`<button class="chip floating" onClick=${follow}>${fresh ? `${count(fresh)} new` : 'not following'} - to the end</button>` : null}</div>`;
}

/** Events and, under those that are open, their causes. @param {any[]} events @param {Set<number>} open */
function unfold(events, open) {
  if (!open.size) return events;
  const out = [];
  for (const e of events) {
    out.push(e);
    if (open.has(e.seq)) e.chain.forEach((/** @type {string} */ cause, /** @type {number} */ i) => out.push({ ...e, line: i, cause }));
  }
  return out;
}

/** @param {{ first: number | undefined, filter: string }} props */
function Older({ first, filter }) {
  const [state, setState] = useState('');
  if (first === undefined || state === 'none') return null;
  const more = async () => {
    setState('busy');
    const events = (await get('inspect/view', { view: 'events', before: first, limit: most, filter }).catch(() => null))?.data.events;
    if (events) prependEvents(events);
    setState(events?.length ? '' : 'none');
  };
  return html`<p class="older"><button class="chip" disabled=${state === 'busy'} onClick=${more}>Older ones</button></p>`;
}
