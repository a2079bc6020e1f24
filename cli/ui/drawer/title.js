// The head of every drawer: a name, a state, a word more.
// @ts-check
import { html } from '../vendor/preact.js';

/** @param {{ sign: any, title: any, sub?: any }} props */
export function Title({ sign, title, sub }) {
  return html`<header class="title"><h2>${title}</h2><p>${sign}${sub ? html` <span class="dim">${sub}</span>` : null}</p></header>`;
}
