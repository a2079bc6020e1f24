// The head of every drawer: a name, a state, a word more.
// @ts-check
import { html } from '../vendor/preact.js';
import { State } from '../view/glyph.js';

/** @param {{ state: string, word?: string, title: any, sub?: any }} props */
export function Title({ state, word, title, sub }) {
  return html`<header class="title"><h2>${title}</h2><p><${State} of=${state} word=${word} />${sub ? html` <span class="dim">${sub}</span>` : null}</p></header>`;
}
