// A span: what it was, what caused it, what it caused.
// @ts-check
import { html } from '../vendor/preact.js';
import { clockMs, span } from '../format.js';
import { href, route } from '../route.js';
import { Facts, Link, Section, Words } from '../view/part.js';
import { Spans } from '../view/spans.js';
import { Copy } from '../view/states.js';
import { Title } from './title.js';

export function SpanBody({ of: d }) {
  const s = d.span;
  const { page, params } = route.value;
  const from = s.start - Math.max(1, (s.end ?? s.start + 1) - s.start);
  const to = (s.end ?? s.start) + Math.max(1, (s.end ?? s.start + 1) - s.start);
  return html`<${Title} state=${s.ok ? (s.end === null ? 'busy' : 'succeeded') : 'failed'} word=${s.ok ? (s.end === null ? 'Going' : 'Done') : 'Failed'} title=${s.name} sub=${s.end === null ? s.kind : `${s.kind}, ${span(s.end - s.start)}`} />
    ${s.error ? html`<${Words} of=${s.error} />` : null}
    <${Facts} of=${[
      ['actor', html`<${Link} to=${s.actor} />`],
      ['asked by', s.caller ? html`<${Link} to=${s.caller} />` : null],
      ['began', clockMs(s.start)],
      ['took', s.end === null ? 'not over' : span(s.end - s.start)],
      ['queued', s.queued_ms ? span(s.queued_ms) : 'not at all'],
      ['place', html`<${Link} node=${s.node} /> / <${Link} to=${{ kind: 'process', id: s.process, name: `process ${s.process}` }} />`],
      ...Object.entries(s.attributes ?? {}),
      ['trace', html`<a class="thing" href=${href('timeline', { ...(page === 'timeline' ? params : {}), sel: `span:${s.id}`, trace: s.trace, panel: 'trace', from: String(from), to: String(to) })}>${s.trace}</a> <${Copy} text=${s.trace} what="the id of the trace" />`],
    ]} />
    ${d.cause ? html`<${Section} title="Cause"><${Spans} of=${[d.cause]} label="Cause" actor=${true} /><//>` : html`<p class="dim">No cause is known: it is where the trace begins, or its cause was not kept.</p>`}
    ${d.effects?.length ? html`<${Section} title="Effects"><${Spans} of=${d.effects} label="Effects" actor=${true} /><//>` : null}`;
}
