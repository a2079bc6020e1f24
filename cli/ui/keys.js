// The keyboard: keys of every page, keys of this page, and chords that begin with g.
// @ts-check
import { signal, useEffect } from './vendor/preact.js';
import { singleKeys } from './prefs.js';
import { go, pages, unselect } from './route.js';
/** @typedef {{ keys: string[], does: string, run: (key: string) => void }} Binding */

/** @type {import('./vendor/preact.js').Signal<Binding[]>} */
export const ofPage = signal([]);
/** @type {Binding[]} */
export const ofAll = [];

/** The letter after g. */
export const letters = { now: 'n', problems: 'p', cluster: 'c', actors: 'a', jobs: 'j', runs: 'r', timeline: 't', transfers: 'x', events: 'e' };

/** Keys that hold while a page is shown. @param {Binding[]} list @param {any[]} deps */
export function useKeys(list, deps) {
  useEffect(() => {
    ofPage.value = list;
    return () => {
      if (ofPage.peek() === list) ofPage.value = [];
    };
  }, deps);
}

let chord = 0;

/** @param {KeyboardEvent} e */
function press(e) {
  if (e.defaultPrevented || e.isComposing) return;
  const name = `${e.ctrlKey || e.metaKey ? 'Ctrl+' : ''}${e.key === ' ' ? 'Space' : e.key}`;
  const single = !name.startsWith('Ctrl+') && e.key !== 'Escape';
  if (single && (typing(e) || singleKeys.peek() === 'off' || e.altKey)) return;
  if (document.querySelector('dialog[open]')) return;
  if (single && Date.now() < chord) return second(e);
  if (name === 'g') {
    chord = Date.now() + 1200;
    return;
  }
  const found = [...ofPage.peek(), ...ofAll].find((b) => b.keys.includes(name));
  if (!found || (e.key === 'Enter' || name === 'Space') && onControl(e)) return;
  e.preventDefault();
  found.run(name);
}

/** @param {KeyboardEvent} e */
function second(e) {
  chord = 0;
  const page = pages.find((p) => letters[p] === e.key);
  if (!page) return;
  e.preventDefault();
  unselect();
  go(page);
}

/** @param {KeyboardEvent} e */
const typing = (e) => /** @type {HTMLElement} */ (e.target).matches?.('input:not([type=range]):not([type=checkbox]), textarea, select, [contenteditable]');
/** @param {KeyboardEvent} e */
const onControl = (e) => /** @type {HTMLElement} */ (e.target).matches?.('a, button, summary, input');

/** @param {Binding[]} all */
export function listenKeys(all) {
  ofAll.push(...all);
  document.addEventListener('keydown', press);
}
