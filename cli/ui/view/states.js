// The five states of a view, drawn in one place: loading, empty, partial, stale, error.
// @ts-check
import { html } from '../vendor/preact.js';
import { age, clock } from '../format.js';
import { about, head, meta, now } from '../store.js';
import { retry } from '../stream.js';
import { Shape } from './glyph.js';

/**
 * @param {{ of: any, empty?: any, isEmpty?: boolean, skeleton?: string, again?: () => void, children?: any }} props
 */
export function View({ of, empty, isEmpty, skeleton = 'rows', again, children }) {
  if (of.status === 'error') return html`<${Failed} error=${of.error} again=${again ?? retry} />`;
  if (of.status === 'loading' || !of.data) return html`<${Skeleton} shape=${skeleton} />`;
  if (isEmpty) return empty;
  return children;
}

/** The outline of what comes, after 150 ms. @param {{ shape: string }} props */
function Skeleton({ shape }) {
  const widths = [62, 40, 78, 55, 70, 34, 66, 48, 74, 58, 44, 69];
  return html`<div class="skeleton ${shape}" role="status"><span class="hidden">Loading</span>
    ${widths.map((w, i) => html`<div class="bone" key=${i}><span style=${{ width: `${w / 3}%` }} /><span style=${{ width: `${w / 2}%` }} /></div>`)}</div>`;
}

/** A recording stays as it is: there no command is named. @param {{ title: string, why?: any, command?: string, run?: boolean, children?: any }} props */
export function Empty({ title, why, run, command: said = run ? 'odeon run recipes/rl-sums.toml' : undefined, children }) {
  const command = head.value?.replay || about.value?.exported ? undefined : said;
  return html`<div class="empty"><h2>${title}</h2>${why ? html`<p>${why}</p>` : null}
    ${command ? html`<${Command} text=${command} />` : null}${children}</div>`;
}

/** @param {{ text: string, what?: string }} props */
export const Copy = ({ text, what = text }) => html`<button class="chip" onClick=${() => navigator.clipboard?.writeText(text).catch(() => {})} aria-label=${`Copy ${what}`}>Copy</button>`;

/** A command to copy. @param {{ text: string }} props */
export const Command = ({ text }) => html`<p class="command"><code>${text}</code><${Copy} text=${text} /></p>`;

/** A text whose commands stand between backticks. @param {string} text */
export const marked = (text) => text.split('`').map((part, i) => (i % 2 ? html`<code>${part}</code>` : part));

/** @param {{ error: import('../types').Failure, again: () => void }} props */
export function Failed({ error, again }) {
  const [first, ...rest] = (error.why ?? '').split(/(?<=[.!?])\s+/);
  return html`<div class="failed" role="alert"><p class="tone-failed"><${Shape} of="cross" /> <code>${error.kind === 'unavailable' ? 'disconnected' : error.kind}</code></p>
    <h2>${marked(first)}</h2>${[rest.join(' '), error.hint].map((text) => (text ? html`<p>${marked(text)}</p>` : null))}
    ${error.request ? html`<p class="dim request" title="The daemon's log has it under this number">request <code>${error.request}</code> <${Copy} text=${error.request} what="the number of the request" /></p>` : null}
    <button class="button" onClick=${again}>Retry</button></div>`;
}

/** Who did not answer, and as of when they are shown. */
export function Partial() {
  const gaps = meta.value?.missing ?? [];
  if (!gaps.length) return null;
  const [first, ...rest] = gaps;
  return html`<div class="banner tone-waiting"><${Shape} of="mark" />
    <span>${first.node} did not answer for ${age(Math.max(0, now.value - first.since))}${first.why ? ` (${first.why})` : ''}; showing it as of ${clock(first.since)}.
    ${rest.length ? ` So it is with ${rest.map((g) => g.node).join(', ')}.` : ''}</span></div>`;
}
