// A transfer: from whom to whom, by which way, how fast against what it could be.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, clockMs, percent, span, speed } from '../format.js';
import { now } from '../store.js';
import { Board } from '../view/board.js';
import { Bar, Facts, Link, Measured, Words } from '../view/part.js';
import { Title } from './title.js';

export function TransferBody({ of: d }) {
  const c = d.copy;
  if (!c) return d.board ? html`<${Title} state="ok" word="Board" title=${d.board.name} /><${Board} of=${d.board} />` : null;
  return html`<${Title} state=${c.ok ? (c.end === null ? 'busy' : 'succeeded') : 'failed'} word=${c.ok ? (c.end === null ? 'Under way' : 'Done') : 'Failed'} title=${c.what} sub=${bytes(c.bytes)} />
    ${c.error ? html`<${Words} of=${c.error} />` : null}
    <p class="spread"><${Bar} share=${c.bytes ? c.done / c.bytes : 1} /> <span class="num">${percent(c.bytes ? c.done / c.bytes : 1)}</span></p>
    <${Facts} of=${[
      ['from', html`<${Link} to=${c.from} />`],
      ['to', html`<${Link} to=${c.to} />`],
      ['route', c.route],
      ['achieved', html`<${Measured} of=${c.gb_per_s} show=${speed} />`],
      ['expected', html`<${Measured} of=${c.expected_gb_per_s} show=${speed} />`],
      ['began', clockMs(c.start)],
      ['took', c.end === null ? `${span(now.value - c.start)}, not over` : span(c.end - c.start)],
      ['cause', c.span ? html`<${Link} to=${{ kind: 'span', id: c.span, name: `span ${c.span}` }} />` : null],
    ]} />
    ${d.board ? html`<${Board} of=${d.board} />` : null}`;
}
