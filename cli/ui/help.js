// The keys of this page, in one overlay.
// @ts-check
import { html } from './vendor/preact.js';
import { value } from './format.js';
import { titleOf } from './frame.js';
import { letters, ofAll, ofPage } from './keys.js';
import { singleKeys } from './prefs.js';
import { pages, route } from './route.js';
import { about } from './store.js';
import { Dialog } from './view/dialog.js';

const shown = { Space: 'Space', ArrowDown: '↓', ArrowUp: '↑', ArrowLeft: '←', ArrowRight: '→', Escape: 'Esc' };

/** @param {{ close: () => void }} props */
export function Help({ close }) {
  const on = singleKeys.value === 'on';
  const list = (/** @type {any[]} */ all) => html`<dl class="keys">${all.map((b) => html`<div key=${b.does}><dt>${b.keys.map((k) => html`<kbd key=${k}>${shown[k] ?? k}</kbd>`)}</dt><dd>${b.does}</dd></div>`)}</dl>`;
  return html`<${Dialog} label="Keys" close=${close}>
    <header class="rule"><h2>Keys</h2><button class="chip" onClick=${close}>Close</button></header>
    <div class="columns">
      <section><h3>${titleOf(route.value.page)}</h3>${ofPage.value.length ? list(ofPage.value) : html`<p class="dim">No keys of its own.</p>`}
        <h3>In tables and trees</h3>${list([{ keys: ['j', 'k', 'ArrowDown', 'ArrowUp'], does: 'next, previous' }, { keys: ['Home', 'End', 'PageUp', 'PageDown'], does: 'far' }, { keys: ['h', 'l'], does: 'collapse, expand' }, { keys: ['Enter'], does: 'open in the drawer' }])}</section>
      <section><h3>Everywhere</h3>${list(ofAll)}</section>
      <section><h3>Pages</h3>${list(pages.map((p) => ({ keys: ['g', letters[p]], does: titleOf(p) })))}</section>
    </div>
    ${about.value?.limits?.length ? html`<h3>Limits of this daemon</h3><dl class="limits">${about.value.limits.map((l) => html`<div key=${l.name}><dt>${l.name}</dt><dd><b>${value(l.value, l.unit)}</b> <span class="dim">${l.why}</span></dd></div>`)}</dl>` : null}
    <p><label class="check"><input type="checkbox" checked=${on} onChange=${() => { singleKeys.value = on ? 'off' : 'on'; }} /> Shortcuts of a single key</label></p>
  <//>`;
}
