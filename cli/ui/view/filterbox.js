// The filter of a page: one box, the same text as in the address.
// @ts-check
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { keys, parse } from '../filter.js';
import { patch, route } from '../route.js';
import { Toggle } from './part.js';

/** @param {{ hint: string, wrong?: string | null, words?: string[], values?: Record<string, string[]> }} props `wrong` is why the server does not take the filter */
export function FilterBox({ hint, wrong = null, words, values }) {
  const asked = route.value.params.f ?? '';
  const [text, setText] = useState(asked);
  const [bad, setBad] = useState(() => parse(asked, values).error);
  const timer = useRef(0);
  useEffect(() => {
    setText((old) => (old.trim() === asked ? old : asked));
    setBad(parse(asked, values).error);
  }, [asked]);
  const error = bad ?? (text.trim() === asked ? wrong : null);
  const input = (e) => {
    const next = e.target.value;
    setText(next);
    clearTimeout(timer.current);
    timer.current = Number(setTimeout(() => {
      const why = parse(next, values).error;
      setBad(why);
      if (!why) patch({ f: next.trim() });
    }, 180));
  };
  const list = words ?? [...keys.words.slice(0, 6).map((w) => `${w}:`), ...keys.numbers.slice(0, 5).map((n) => `${n}>`)];
  const add = (/** @type {string} */ word) => {
    setText((old) => `${old.trimEnd()} ${word}`.trimStart());
    /** @type {HTMLElement | null} */ (document.querySelector('main input[type=search]'))?.focus();
  };
  return html`<div class="filter ${error ? 'wrong' : ''}">
    <input type="search" aria-label="Filter" placeholder=${hint} spellcheck="false" autocomplete="off" value=${text} onInput=${input}
      aria-invalid=${error ? 'true' : 'false'} aria-describedby="filter-help" />
    <div class=${error || list.length ? 'below' : 'hidden'} id="filter-help">${error ? html`<span class="tone-failed" role="alert">${error}</span> <span class="dim">It is not applied.</span>`
      : html`<span class="words"><span class="dim">narrow by</span> ${list.map((w) => html`<button class="chip" key=${w} tabindex="-1" onMouseDown=${(e) => { e.preventDefault(); add(w); }}>${w}</button>`)}</span>`}</div>
  </div>`;
}

/** The line over a page: its name, what narrows it, what else it offers. @param {{ title: string, note?: any, children?: any }} props */
export function Bar({ title, note, children }) {
  return html`<div class="toolbar"><h1>${title}</h1>${note ? html`<span class="note">${note}</span>` : null}${children}</div>`;
}

/** One of a few. @param {{ label: string, of: [string, string][], at: string, set: (v: string) => void }} props */
export function Choice({ label, of, at, set }) {
  return html`<span class="choice" role="group" aria-label=${label}><span class="dim">${label}</span>
    ${of.map(([v, word]) => html`<${Toggle} key=${v} on=${v === at} onClick=${() => set(v)}>${word}<//>`)}</span>`;
}
