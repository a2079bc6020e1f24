// The last lines that a job or an actor wrote, paged backwards.
// @ts-check
import { html, useEffect, useState } from '../vendor/preact.js';
import { explain, get } from '../api.js';
import { clock } from '../format.js';
import { Section } from './part.js';

/** @param {{ query: Record<string, string>, limit?: number }} props */
export function Logs({ query, limit = 100 }) {
  const [is, set] = useState(/** @type {any} */ ({ lines: null, more: false, error: null }));
  const key = JSON.stringify(query);
  const load = async (/** @type {number | undefined} */ before) => {
    try {
      const { data } = await get('inspect/logs', { ...query, before, limit });
      set((old) => ({ lines: before ? [...data.lines, ...(old.lines ?? [])] : data.lines, more: data.more, error: null }));
    } catch (error) {
      set((old) => ({ ...old, error: explain(error) }));
    }
  };
  useEffect(() => {
    load(undefined);
  }, [key]);
  if (is.error?.kind === 'unknown') return html`<${Section} title="Log"><p class="dim">No log is kept of this.</p><//>`;
  if (is.error) return html`<${Section} title="Log" note=${html`<button class="chip" onClick=${() => load(undefined)}>Retry</button>`}><p class="tone-failed">${is.error.why}</p><//>`;
  if (!is.lines?.length) return is.lines ? html`<${Section} title="Log"><p class="dim">Nothing written.</p><//>` : null;
  return html`<${Section} title="Log" note=${html`<button class="chip" onClick=${() => load(undefined)}>Newest</button>`}>
    ${is.more ? html`<button class="chip" onClick=${() => load(is.lines[0].at)}>Earlier lines</button>` : null}
    <pre class="log" tabindex="0" role="region" aria-label="Log">${is.lines.map((l, /** @type {number} */ i) => html`<span key=${i}><span class="dim">${clock(l.at)} ${l.node} ${l.stream === 'err' ? html`<span class="tag">err</span> ` : ''}</span>${l.text}${'\n'}</span>`)}</pre><//>`;
}
