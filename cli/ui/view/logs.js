// The last lines that a job, a process or a whole run wrote, paged backwards.
// @ts-check
import { html, useEffect, useState } from '../vendor/preact.js';
import { explain, get } from '../api.js';
import { clock } from '../format.js';
import { Link, Section } from './part.js';
import { Failed } from './states.js';

/** @param {{ query: { job?: string, actor?: string, process?: string }, title?: string, limit?: number }} props */
export function Logs({ query, title = 'Log', limit = 100 }) {
  const [is, set] = useState(/** @type {any} */ ({ lines: null, more: false, none: null, error: null }));
  const key = JSON.stringify(query);
  const load = async (/** @type {string | undefined} */ before) => {
    try {
      const { data } = await get('inspect/logs', { ...query, before, limit });
      set((old) => ({ lines: before ? [...data.lines, ...old.lines] : data.lines, more: data.more && data.earlier, none: data.none_kept, error: null }));
    } catch (error) {
      set((old) => ({ ...old, error: explain(error) }));
    }
  };
  useEffect(() => {
    load(undefined);
  }, [key]);
  const { lines, error } = is;
  if (error && error.kind !== 'unknown') return html`<${Section} title=${title}><${Failed} error=${error} again=${() => load(undefined)} /><//>`;
  if (!lines && !error) return null;
  const none = error?.why ?? is.none ?? (lines.length ? null : 'Nothing written.');
  return html`<${Section} title=${title} note=${html`<button class="chip" onClick=${() => load(undefined)}>Newest</button>`}>
    ${none ? html`<p class="dim">${none}</p>` : html`${is.more ? html`<button class="chip" onClick=${() => load(is.more)}>Earlier lines</button>` : null}<${Lines} of=${lines} />`}<//>`;
}

/** Each line says who wrote it, where several did. @param {{ of: any[] }} props */
function Lines({ of }) {
  const several = new Set(of.map((l) => l.process)).size > 1;
  return html`<pre class="log" tabindex="0" role="region" aria-label="Log">${of.map((l, i) => html`<span key=${i}>${i && l.attempt !== of[i - 1].attempt ? html`<span class="dim">attempt ${l.attempt}${'\n'}</span>` : null}<span class="dim">${clock(l.at)} ${l.node} ${several ? html`<${By} process=${l.process} /> ` : ''}${l.stream === 'err' ? html`<span class="tag">err</span> ` : ''}</span>${l.text}${'\n'}</span>`)}</pre>`;
}

/** Of a job's own program only the role is told. @param {{ process: string }} props */
const By = ({ process }) => (process === 'driver' ? process : html`<${Link} to=${{ kind: 'process', id: process, name: process }} />`);
