// The palette: go to anything by name, or run a command.
// @ts-check
import { html, useEffect, useMemo, useRef, useState } from './vendor/preact.js';
import { get } from './api.js';
import { withSystem } from './filter.js';
import { titleOf } from './frame.js';
import { letters } from './keys.js';
import { nextTheme, singleKeys, system } from './prefs.js';
import { go, pages } from './route.js';
import { match, rank } from './subsequence.js';
import { paused } from './store.js';
import { pause, retry } from './stream.js';
import { Dialog } from './view/dialog.js';
import { State } from './view/glyph.js';
import { nameOf, toward } from './view/part.js';
/** @typedef {{ id: string, word: string, kind: string, sign?: any, hint?: string, run: () => void }} Item */

const shownMost = 40;
/** So many actors are matched here; beyond them the daemon is asked for whole words. */
const known = 2000;

/** @param {{ close: () => void, open: (what: string) => void }} props */
export function Palette({ close, open }) {
  const [text, setText] = useState('');
  const [at, setAt] = useState(0);
  const things = useThings(text);
  const fixed = useMemo(() => commands(open), []);
  const all = rank(text, [...fixed, ...things], (i) => i.word, shownMost);
  const here = Math.min(at, Math.max(0, all.length - 1));
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    box.current?.querySelector('[aria-selected=true]')?.scrollIntoView({ block: 'nearest' });
  }, [here, text]);
  const choose = (/** @type {Item | undefined} */ item) => {
    if (!item) return;
    close();
    setTimeout(item.run, 0);
  };
  const key = (e) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (step && all.length) setAt((here + step + all.length) % all.length);
    else if (e.key === 'Enter') choose(all[here]);
    else return;
    e.preventDefault();
  };
  return html`<${Dialog} label="Search or command" close=${close} kind="palette">
    <input type="text" role="combobox" aria-expanded="true" aria-controls="palette-list" aria-label="Search or command" autocomplete="off" spellcheck="false" placeholder="A page, an actor, a node, a job, a command"
      aria-activedescendant=${all.length ? `palette-${here}` : undefined} value=${text} onInput=${(e) => { setText(e.target.value); setAt(0); }} onKeyDown=${key} autofocus />
    <ul id="palette-list" role="listbox" aria-label="Found" ref=${box} tabindex="-1">
      ${all.map((item, i) => html`<li key=${item.id} id=${`palette-${i}`} role="option" aria-selected=${i === here ? 'true' : 'false'} onClick=${() => choose(item)} onPointerMove=${() => setAt(i)}>
        <span class="sign">${item.sign}</span><span class="word"><${Marked} text=${item.word} by=${text} /></span><span class="dim">${item.hint ?? item.kind}</span></li>`)}
    </ul>${all.length ? null : html`<p class="dim none" role="status">Nothing is called that.</p>`}
  <//>`;
}

/** The letters that matched, marked. @param {{ text: string, by: string }} props */
function Marked({ text, by }) {
  const hit = new Set(match(by, text)?.at ?? []);
  if (!hit.size) return text;
  return html`${[...text].map((c, i) => (hit.has(i) ? html`<mark key=${i}>${c}</mark>` : c))}`;
}

/** @param {(what: string) => void} open @returns {Item[]} */
function commands(open) {
  const command = (/** @type {string} */ word, /** @type {() => void} */ run, hint = 'command') => ({ id: `command ${word}`, word, kind: 'command', hint, run });
  return [
    ...pages.map((p) => ({ id: `page ${p}`, word: titleOf(p), kind: 'page', hint: `page  g ${letters[p]}`, run: () => go(p) })),
    command(paused.peek() ? 'Go on' : 'Pause', () => pause(!paused.peek()), 'Space'),
    command('Failed actors', () => go('actors', { f: 'state:failed' })),
    command('Waiting actors', () => go('actors', { f: 'state:waiting' })),
    command('Deep mailboxes', () => go('actors', { f: 'mailbox>100', sort: '-mailbox' })),
    command(system.peek() === 'on' ? 'Hide system actors' : 'System actors too', () => { system.value = system.peek() === 'on' ? 'off' : 'on'; }),
    command('Actors by type', () => go('actors', { g: 'type' })),
    command('Supervision tree', () => go('actors', { tree: '1' })),
    command('Errors only', () => go('events', { f: 'severity:error' })),
    command('Links between nodes', () => go('cluster', { links: '1' })),
    command('Next theme', nextTheme),
    command('Keys of this page', () => open('help'), '?'),
    command('Single keys on or off', () => { singleKeys.value = singleKeys.peek() === 'on' ? 'off' : 'on'; }),
    command('Copy a link to this view', () => navigator.clipboard?.writeText(location.href).catch(() => {}), 'y'),
    command('Reconnect', retry),
  ];
}

/** Nodes, jobs and actors by name; many actors are looked up by the daemon. @param {string} text @returns {Item[]} */
function useThings(text) {
  const [nodes, setNodes] = useState(/** @type {Item[]} */ ([]));
  const [actors, setActors] = useState(/** @type {Item[]} */ ([]));
  const [found, setFound] = useState(/** @type {Item[]} */ ([]));
  const [more, setMore] = useState(false);
  const thing = (kind, id, word, state, hint) => ({ id: `${kind} ${id}`, word, kind, hint, sign: html`<${State} of=${state} bare=${true} />`, run: () => { location.hash = toward({ kind, id }); } });
  useEffect(() => {
    const ask = (/** @type {string} */ view) => get('inspect/view', { view }).then((e) => e.data).catch(() => ({}));
    Promise.all([ask('cluster'), ask('jobs')]).then(([c, j]) => setNodes([
      ...(c.nodes ?? []).map((n) => thing('node', n.name, n.name, n.state, 'node')),
      ...(c.nodes ?? []).flatMap((n) => n.devices.map((d) => thing('device', d.id, d.id, d.state, d.name))),
      ...(j.jobs ?? []).map((job) => thing('job', job.id, job.name, job.state, `job ${job.id}`)),
    ]));
  }, []);
  const rows = (/** @type {any} */ e) => e.data.rows.map((r) => thing('actor', r.id, nameOf(r), r.state, r.node));
  useEffect(() => {
    get('inspect/view', { view: 'actors', limit: known, filter: withSystem('', system.peek() === 'on') }).then((e) => {
      setActors(rows(e));
      setMore(e.total > e.shown);
    }).catch(() => {});
  }, []);
  useEffect(() => {
    const word = text.trim().replaceAll('"', '');
    if (!more || !word) return undefined;
    const control = new AbortController();
    const timer = setTimeout(() => get('inspect/view', { view: 'actors', limit: 60, filter: withSystem(`"${word}"`, system.peek() === 'on') }, control.signal).then((e) => setFound(rows(e))).catch(() => {}), 120);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [text, more]);
  const here = new Set(actors.map((a) => a.id));
  return [...nodes, ...actors, ...found.filter((a) => !here.has(a.id))];
}
