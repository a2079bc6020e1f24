// What stands around every page: header, navigation, replay controls, banners, the footer that never lies.
// @ts-check
import { html, useEffect, useRef } from './vendor/preact.js';
import { post } from './api.js';
import { age, clock, clockError, count, plural, short, span } from './format.js';
import { letters } from './keys.js';
import { nextTheme, singleKeys, theme } from './prefs.js';
import { go, href, pages, patch, route } from './route.js';
import { about, ageOf, conn, head, instant, live, meta, paused, restarted, tick } from './store.js';
import { pause, retry } from './stream.js';
import { Shape } from './view/glyph.js';
import { mentionsSystem, split, toggle } from './filter.js';

const titles = { now: 'Now', cluster: 'Cluster', actors: 'Actors', jobs: 'Jobs', runs: 'Runs', timeline: 'Timeline', transfers: 'Transfers', events: 'Events' };
/** @param {string} page */
export const titleOf = (page) => titles[page];

/** @param {{ openPalette: () => void, openHelp: () => void }} props */
export function Header({ openPalette, openHelp }) {
  const h = head.value;
  const is = conn.value.phase;
  return html`<header class="top ${['stale', 'failed'].includes(is) ? 'amber' : ''}">
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ e) => { e.preventDefault(); document.getElementById('main')?.focus(); }}>Skip to content</a>
    <a class="brand" href=${href('now')}>${h?.name ?? 'odeon'}</a>
    ${h ? html`<${Counts} of=${h} />` : html`<span class="grow" />`}
    <${Pulse} />
    <button class="icon" aria-pressed=${paused.value ? 'true' : 'false'} title=${paused.value ? 'Go on (Space)' : 'Pause (Space)'} aria-label="Pause" onClick=${() => pause(!paused.value)}>
      <${Shape} of=${paused.value ? 'triangle' : 'pause'} /></button>
    <button class="finder" onClick=${openPalette} title="Search or command (Ctrl+K)"><${Shape} of="search" /><span>Search or command</span><kbd>Ctrl+K</kbd></button>
    <${Switches} openHelp=${openHelp} />
  </header>`;
}

/** @param {{ of: import('./types').Head }} props */
function Counts({ of: h }) {
  const bad = h.problems.error + h.problems.warning;
  return html`<div class="counts">
    <a href=${href('cluster')} class=${h.nodes.up < h.nodes.all ? 'tone-failed' : ''}><b>${h.nodes.up < h.nodes.all ? `${h.nodes.up}/` : ''}${count(h.nodes.all)}</b> ${h.nodes.all === 1 ? 'node' : 'nodes'}</a>
    <a href=${href('cluster')} class="wide"><b>${count(h.devices)}</b> ${h.devices === 1 ? 'GPU' : 'GPUs'}</a>
    <a href=${href('actors')}><b>${count(h.actors.all)}</b> ${h.actors.all === 1 ? 'actor' : 'actors'}</a>
    ${h.actors.failed ? html`<a href=${href('actors', { f: 'state:failed' })} class="tone-failed"><${Shape} of="cross" size=${10} /> <b>${count(h.actors.failed)}</b> failed</a>` : null}
    <a href=${href('now')} class=${h.problems.error ? 'tone-failed' : bad ? 'tone-waiting' : 'dim'}>${bad ? html`<${Shape} of=${h.problems.error ? 'cross' : 'mark'} size=${10} /> <b>${count(bad)}</b> ${bad === 1 ? 'problem' : 'problems'}` : 'no problems'}</a>
  </div>`;
}

const lost = { internal: 'the daemon fails', too_many: 'too many pages look on' };

/** Whether what is seen is now. */
function Pulse() {
  tick.value;
  const c = conn.value;
  const gone = performance.now() - c.since;
  const old = ageOf.value === null || ageOf.value < 100 ? '' : ` ${(ageOf.value / 1000).toFixed(1)} s ago`;
  const words = {
    connecting: 'connecting', live: `live${old}`, paused: `paused, shown as of ${meta.value ? clock(meta.value.captured_at) : '-'}`, hidden: 'resting',
    stale: `${lost[c.error?.kind] ?? 'disconnected'} ${age(gone)}, retrying in ${age(Math.max(0, c.retry_at - performance.now() + 999))}`, locked: 'locked', failed: 'refused',
  };
  const sign = c.phase === 'live' ? 'dot' : c.phase === 'paused' ? 'pause' : c.phase === 'stale' ? 'mark' : 'circle';
  return html`<span class="pulse is-${c.phase}"><${Shape} of=${sign} size=${10} /> <span>${words[c.phase]}</span>
    ${c.phase === 'stale' ? html`<button class="chip" onClick=${retry}>Now</button>` : null}</span>`;
}

/** @param {{ openHelp: () => void }} props */
function Switches({ openHelp }) {
  const f = route.value.params.f ?? '';
  const system = mentionsSystem(f);
  const flip = () => {
    const text = system ? split(f).filter((w) => !/^-?system\b/.test(w)).join(' ') : toggle(f, 'system:any');
    if (route.peek().page === 'actors') patch({ f: text });
    else go('actors', { f: 'system:any' });
  };
  return html`<div class="switches">
    <button class="icon" aria-pressed=${system ? 'true' : 'false'} title="System actors too" onClick=${flip}>sys<span class="hidden">tem actors too</span></button>
    <button class="icon" title=${`Theme: ${theme.value}`} aria-label=${`Theme: ${theme.value}`} onClick=${nextTheme}><${Shape} of="half" /></button>
    <button class="icon" title="Keys (?)" aria-label="Keys" onClick=${openHelp}>?</button>
  </div>`;
}

export function Nav() {
  const here = route.value.page;
  const box = useRef();
  useEffect(() => box.current.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' }), [here]);
  return html`<nav class="pages" aria-label="Pages" ref=${box}>
    ${pages.filter((p) => about.value?.faces?.[p] !== false).map((p) => html`<a key=${p} href=${href(p)} aria-current=${p === here ? 'page' : undefined} title=${singleKeys.value === 'on' ? `g ${letters[p]}` : undefined}>${titleOf(p)}</a>`)}
  </nav>`;
}

/** The controls of a recording. */
export function Replay() {
  const r = head.value?.replay;
  if (!r) return null;
  tick.value;
  const send = (body) => post('inspect/replay', body).then((told) => {
    if (told?.to) head.value = { ...head.peek(), replay: told };
  }, () => {});
  const at = Math.min(r.to, r.at + instant() - (meta.peek()?.captured_at ?? instant()));
  const done = r.to > r.from ? (at - r.from) / (r.to - r.from) : 0;
  return html`<div class="replay" role="region" aria-label="Replay">
    <b>Replay</b> <span class="grow-0">${r.name}</span>
    <button class="icon" onClick=${() => send({ paused: !r.paused })} aria-label=${r.paused ? 'Play the recording' : 'Hold the recording'}><${Shape} of=${r.paused ? 'triangle' : 'pause'} /></button>
    <input type="range" min="0" max="1000" value=${Math.round(done * 1000)} aria-label="Place in the recording" aria-valuetext=${span(at - r.from)}
      onChange=${(e) => send({ at: r.from + (Number(e.target.value) / 1000) * (r.to - r.from) })} />
    <span class="num">${span(at - r.from)} of ${span(r.to - r.from)}</span>
    <span role="group" aria-label="Speed">${[0.5, 1, 4, 16].map((s) => html`<button class="chip" key=${s} aria-pressed=${r.speed === s ? 'true' : 'false'} onClick=${() => send({ speed: s })}>${s}x</button>`)}</span>
    ${about.value?.exported ? html`<p class="dim holds">This file holds ${about.value.exported}</p>` : null}
  </div>`;
}

/** Said once when the daemon came back as another one. */
export function Restarted() {
  if (restarted.value === null) return null;
  const newer = about.value && about.value.first !== about.value.version;
  return html`<div class="banner"><${Shape} of="turn" /><span>daemon restarted ${clock(restarted.value)}: numbers and spans start here${newer ? `; it is version ${about.value.version} now, this page is of ${about.value.first}` : ''}</span>
    ${newer ? html`<button class="chip" onClick=${() => location.reload()}>Reload</button>` : null}
    <button class="chip" onClick=${() => { restarted.value = null; }}>Dismiss</button></div>`;
}

/** What is shown of what there is, what was lost, how far it can be trusted. */
export function Footer() {
  const m = meta.value;
  const grouped = route.value.page === 'actors' && route.value.params.g;
  const words = { actors: grouped ? 'actors, in groups' : 'actors', events: 'events', jobs: 'jobs', cluster: 'nodes', transfers: 'copies', runs: 'runs', timeline: 'spans', now: 'problems' };
  const noun = words[route.value.page];
  if (!m) return html`<footer class="honest"><span class="dim">nothing received yet</span></footer>`;
  const old = ageOf.value ?? 0;
  const shown = route.value.page === 'events' ? live.value.data?.events?.length ?? 0 : m.shown;
  return html`<footer class="honest" aria-label="How far this can be trusted">
    <span class=${shown < m.total ? 'tone-waiting' : ''}>shown <b>${count(shown)}</b> of <b>${count(Math.max(shown, m.total))}</b> ${noun}</span>
    <span class=${m.dropped ? 'tone-waiting' : ''}>dropped <b>${count(m.dropped)}</b> ${m.dropped === 1 ? 'span' : 'spans'}</span>
    <span class=${m.sampled > 1 ? 'tone-waiting' : ''}>spans ${m.sampled > 1 ? html`sampled <b>1 in ${short(m.sampled)}</b>` : html`<b>all</b> kept`}</span>
    <span>clock error <b>${clockError(m.clock_error_us)}</b></span>
    ${m.missing.length ? html`<span class="tone-waiting"><b>${m.missing.length}</b> not answering</span>` : null}
    <span class=${old > 5000 ? 'tone-waiting' : ''}>as of <b>${clock(m.captured_at)}</b></span>
    ${head.value ? html`<span class="wide">${short(head.value.spans_per_s)} spans/s</span>` : null}
    <span class="grow" /><span class="dim wide">${about.value ? `odeon ${about.value.version}` : ''}</span>
  </footer>`;
}

/** Says problems to those who do not see them; nothing else. */
export function Announcer() {
  const p = head.value?.problems;
  const phase = conn.value.phase;
  const text = phase === 'stale' ? 'Disconnected from the daemon' : p && p.error + p.warning ? `${plural(p.error, 'error')}, ${plural(p.warning, 'warning')}` : '';
  return html`<div class="hidden" aria-live="polite" role="status">${text}</div>`;
}
