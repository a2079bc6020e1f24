// One event in one line, and how lists of them are filtered.
// @ts-check
import { html } from '../vendor/preact.js';
import { capital, clock } from '../format.js';
import { State } from './glyph.js';
import { Link, Section } from './part.js';

/** A failure is red, a restart violet, the rest as severe as it says. @param {any} e */
export function signOf(e) {
  if (e.kind === 'failure' || e.severity === 'error') return 'failure';
  if (e.kind === 'restart') return 'restart';
  if (e.severity === 'warning') return 'warning';
  return e.kind;
}

/** @param {any} e */
export const wordOf = (e) => (e.kind === 'failure' ? 'Failed' : capital(e.kind));

/** The sentence without its subject at its front, which stands beside it already. @param {any} e */
export function plainly(e) {
  const { kind, id, name = '' } = e.subject ?? {};
  for (const who of [name, name.replace(/ \(pid \d+\)$/, ''), id].filter(Boolean)) {
    for (const front of [`${kind} ${who}`, who]) {
      const rest = e.sentence.startsWith(front) ? /^[:,]?\s+([^\s>].*)$/s.exec(e.sentence.slice(front.length)) : null;
      if (rest) return rest[1];
    }
  }
  return e.sentence;
}

/** @param {{ of: any, chain?: boolean }} props */
function EventLine({ of: e }) {
  return html`<li class="event"><time class="num dim">${clock(e.at)}</time> <${State} of=${signOf(e)} word=${wordOf(e)} />
    <span class="what">${e.subject ? html`<${Link} to=${e.subject} /> ` : null}<span title=${e.sentence}>${plainly(e)}</span>${e.chain?.length ? html` <span class="dim" title=${e.chain.join(', because ')}>because ${e.chain[e.chain.length - 1]}</span>` : null}</span></li>`;
}

/** @param {{ of: any[], label: string }} props */
export function EventLines({ of, label }) {
  if (!of?.length) return html`<p class="dim">No events.</p>`;
  return html`<ol class="events" aria-label=${label}>${of.map((e) => html`<${EventLine} key=${e.seq} of=${e} />`)}</ol>`;
}

/** The events of a thing, where there are any. @param {{ of: any[] | undefined, whose: string, note?: any }} props */
export const Happened = ({ of, whose, note }) => (of?.length ? html`<${Section} title="Events" note=${note}><${EventLines} of=${[...of].reverse()} label=${`Events of ${whose}`} /><//>` : null);
