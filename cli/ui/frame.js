// What stands around every page: header, navigation, replay controls, banners, the footer that never lies.
// @ts-check
import { html, useEffect, useRef } from './vendor/preact.js';
import { post } from './api.js';
import { age, capital, clock, clockError, count, plural, short, span, when } from './format.js';
import { letters } from './keys.js';
import { nextTheme, singleKeys, system, theme } from './prefs.js';
import { href, move, pages, route } from './route.js';
import { about, ageOf, conn, head, instant, live, meta, noted, paused, restarted, tick } from './store.js';
import { pause, retry } from './stream.js';
import { Shape } from './view/glyph.js';
import { Toggle } from './view/part.js';

export const titleOf = capital;
/** @param {number} n @param {string} one */
const many = (n, one) => html`<b>${count(n)}</b> ${n === 1 ? one : `${one}s`}`;

/** @param {{ openPalette: () => void, openHelp: () => void }} props */
export function Header({ openPalette, openHelp }) {
  const h = head.value;
  const is = conn.value.phase;
  return html`<header class="top ${['stale', 'failed'].includes(is) ? 'amber' : ''}">
    <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.getElementById('main')?.focus(); }}>Skip to content</a>
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
    <a href=${href('cluster')} class=${h.nodes.up < h.nodes.all ? 'tone-failed' : ''}>${h.nodes.up < h.nodes.all ? html`<b>${h.nodes.up}/</b>` : null}${many(h.nodes.all, 'node')}</a>
    <a href=${href('cluster')} class="wide">${many(h.devices, 'GPU')}</a>
    <a href=${href('actors')}>${many(h.actors.all, 'actor')}</a>
    ${h.actors.failed ? html`<a href=${href('actors', { f: 'state:failed' })} class="tone-failed"><${Shape} of="cross" size=${10} /> <b>${count(h.actors.failed)}</b> failed</a>` : null}
    <a href=${href('problems')} class=${h.problems.error ? 'tone-failed' : bad ? 'tone-waiting' : 'dim'}>${bad ? html`<${Shape} of=${h.problems.error ? 'cross' : 'mark'} size=${10} /> ${many(bad, 'problem')}` : 'no problems'}</a>
  </div>`;
}

const lost = { internal: 'the daemon fails', too_many: 'too many pages look on' };

/** Whether what is seen is now. */
function Pulse() {
  tick.value;
  const c = conn.value;
  const gone = performance.now() - c.since;
  const old = ageOf.value === null || ageOf.value < 2000 ? '' : ` ${age(ageOf.value)} ago`;
  const recorded = c.phase === 'live' && head.value?.replay;
  const words = {
    connecting: 'connecting', live: recorded ? 'recorded' : `live${old}`, paused: `paused, shown as of ${meta.value ? clock(meta.value.captured_at) : '-'}`, hidden: 'resting',
    stale: `${lost[c.error?.kind] ?? 'disconnected'} ${age(gone)}, retrying in ${age(Math.max(0, c.retry_at - performance.now() + 999))}`, locked: 'locked', failed: 'refused',
  };
  const sign = recorded ? 'turn' : c.phase === 'live' ? 'dot' : c.phase === 'paused' ? 'pause' : c.phase === 'stale' ? 'mark' : 'circle';
  return html`<span class="pulse is-${recorded ? 'recorded' : c.phase}"><${Shape} of=${sign} size=${10} /> <span>${words[c.phase]}</span>
    ${c.phase === 'stale' ? html`<button class="chip" onClick=${retry}>Now</button>` : null}</span>`;
}

/** @param {{ openHelp: () => void }} props */
function Switches({ openHelp }) {
  const on = system.value === 'on';
  return html`<div class="switches">
    <button class="icon" aria-pressed=${on ? 'true' : 'false'} aria-label="sys: system actors too" title=${`The runtime's own actors and their lanes are ${on ? 'shown' : 'hidden'}`} onClick=${() => { system.value = on ? 'off' : 'on'; }}>sys</button>
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
    if (told?.to) head.value = /** @type {any} */ ({ ...head.peek(), replay: told });
  }, () => {});
  const at = Math.min(r.to, r.at + instant() - (meta.peek()?.captured_at ?? instant()));
  const done = r.to > r.from ? (at - r.from) / (r.to - r.from) : 0;
  const { exported, moments } = about.value ?? {};
  if (exported && moments === 1) return html`<div class="replay" role="region" aria-label="Recorded"><b>Recorded</b> <span>${r.name}</span> <span class="dim holds">This file holds ${exported}</span></div>`;
  return html`<div class="replay" role="region" aria-label="Replay">
    <b>Replay</b> <span class="grow-0">${r.name}</span>
    <button class="icon" onClick=${() => send({ paused: !r.paused })} aria-label=${r.paused ? 'Play the recording' : 'Hold the recording'}><${Shape} of=${r.paused ? 'triangle' : 'pause'} /></button>
    <input type="range" min="0" max="1000" value=${Math.round(done * 1000)} aria-label="Place in the recording" aria-valuetext=${span(at - r.from)}
      onChange=${(e) => send({ at: r.from + (Number(e.target.value) / 1000) * (r.to - r.from) })} />
    <span class="num">${span(at - r.from)} of ${span(r.to - r.from)}</span>
    <span role="group" aria-label="Speed">${[0.5, 1, 4, 16].map((s) => html`<${Toggle} key=${s} on=${r.speed === s} onClick=${() => send({ speed: s })}>${s}x<//>`)}</span>
    ${about.value?.exported ? html`<p class="dim holds">This file holds ${about.value.exported}</p>` : null}
  </div>`;
}

/** What is said once: of a link that did not work, of an address that names no page. */
export function Noted() {
  const { page, unknown } = route.value;
  const text = noted.value ?? (unknown ? `No page is called ${unknown}; this is ${titleOf(page)}.` : null);
  if (!text) return null;
  const dismiss = () => {
    noted.value = null;
    move(href(page, route.peek().params), true);
  };
  return html`<div class="banner" role="alert"><${Shape} of="mark" /><span>${text}</span><button class="chip" onClick=${dismiss}>Dismiss</button></div>`;
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
  tick.value;
  const { page, params } = route.value;
  const m = live.value.view === page ? live.value.meta : null;
  if (!m) return html`<footer class="honest"><span class="dim">nothing received yet</span></footer>`;
  const old = performance.now() - m.received;
  return html`<footer class="honest" aria-label="How far this can be trusted">
    <${Share} of=${m} noun=${page === 'actors' && params.g ? 'actors, in groups' : nouns[page]} page=${page} />
    <span class=${m.dropped ? 'tone-waiting' : ''}>dropped ${many(m.dropped, 'span')}</span>
    <span class=${m.sampled > 1 ? 'tone-waiting' : ''}>spans ${m.sampled > 1 ? html`sampled <b>1 in ${short(m.sampled)}</b>` : html`<b>all</b> recorded`}${m.kept_from ? html`, kept since <b>${when(m.kept_from, m.captured_at)}</b>` : null}</span>
    ${m.clock_error_us === null && (head.value?.nodes.all ?? 0) <= 1 ? html`<span><b>one</b> clock</span>` : html`<span>clock error <b>${clockError(m.clock_error_us)}</b></span>`}
    ${m.missing.length ? html`<span class="tone-waiting"><b>${m.missing.length}</b> not answering</span>` : null}
    <span class=${old > 5000 ? 'tone-waiting' : ''}>as of <b>${clock(m.captured_at)}</b></span>
    ${head.value ? html`<span class="wide">${short(head.value.spans_per_s)} spans/s</span>` : null}
    <span class="grow" /><span class="dim wide">${about.value ? `odeon ${about.value.version}` : ''}</span>
  </footer>`;
}

const nouns = { actors: 'actors', events: 'events', jobs: 'jobs', cluster: 'nodes', transfers: 'copies', runs: 'runs', timeline: 'spans', problems: 'problems', now: 'problems' };

/** What is shown of what there is; spans too thin to draw are not missing. @param {{ of: any, noun: string, page: string }} props */
function Share({ of: m, noun, page }) {
  const shown = page === 'events' ? live.value.data?.events?.length ?? 0 : m.shown;
  const all = Math.max(shown, m.total);
  if (page === 'timeline' && shown < all) return html`<span title="The rest is drawn as how busy each moment was; zoom in to see each">shown one by one <b>${count(shown)}</b> of <b>${count(all)}</b> spans</span>`;
  return html`<span class=${shown < all ? 'tone-waiting' : ''}>shown <b>${count(shown)}</b> of <b>${count(all)}</b> ${noun}</span>`;
}

/** Says problems to those who do not see them; nothing else. */
export function Announcer() {
  const p = head.value?.problems;
  const phase = conn.value.phase;
  const text = phase === 'stale' ? 'Disconnected from the daemon' : p && p.error + p.warning ? `Problems: ${plural(p.error, 'error')}, ${plural(p.warning, 'warning')}` : '';
  return html`<div class="hidden" aria-live="polite" role="status">${text}</div>`;
}
