// The passes of a pipeline in one of its last steps: a lane for each rank, blocks for passes, gaps for bubbles.
// @ts-check
import { html, useMemo } from '../vendor/preact.js';
import { count, percent, plural, span } from '../format.js';
import { Section, Wide } from './part.js';
/** @typedef {[number, number, string, number, number]} Pass begin and end in milliseconds, kind, micro-batch, stage of the rank */

/** From this part of the step on a block has room for its number. */
const roomy = 0.025;

/** @param {{ of: any }} props */
export function Pipeline({ of: p }) {
  const words = `step ${count(p.step)}: ${plural(p.micro_batches, 'micro-batch', 'micro-batches')} in ${span(p.ms)}, idle ${percent(p.idle_share)} of the time, where the order of ${p.schedule} asks for ${percent(p.schedule_idle_share)}`;
  const lanes = useMemo(() => p.lanes.map((lane) => html`<${Lane} key=${lane.rank} of=${lane} ms=${p.ms} />`), [p.step, p.start]);
  const divided = p.lanes.some((lane) => lane.passes.some((pass) => pass[2] === 'weight'));
  return html`<${Section} title="Pipeline" note=${words}>
    <p class="legend dim"><span><span class="swatch p-forward" /> forward pass</span>${divided ? html`<span><span class="swatch p-input" /> gradient of rows</span><span><span class="swatch p-weight" /> gradient of weights</span>` : html`<span><span class="swatch p-backward" /> backward pass</span>`}${p.chunks > 1 ? html`<span><span class="swatch p-forward chunk-1" /> of the rank's next stage</span>` : null}<span>numbers are micro-batches, gaps are bubbles</span></p>
    <${Wide} label="Lanes of the pipeline"><div class="plane" role="list">${lanes}</div><//>
    <p class="dim ends plane-ends"><span>0</span><span>${span(p.ms)}</span></p><//>`;
}

/** @param {{ of: { rank: number, idle_share: number, passes: Pass[] }, ms: number }} props */
function Lane({ of, ms }) {
  const place = (/** @type {Pass} */ [from, to]) => ({ left: `${(from / ms) * 100}%`, width: `${Math.max(0.1, ((to - from) / ms) * 100)}%` });
  const words = (/** @type {Pass} */ [from, to, kind, micro, chunk]) => `${kind} of micro-batch ${micro}${chunk ? `, stage ${chunk + 1} of the rank` : ''}: ${span(to - from)}`;
  return html`<div class="pipe" role="listitem"><span class="who">rank ${of.rank}</span>
    <span class="track" role="img" aria-label=${`${plural(of.passes.length, 'pass', 'passes')}, idle ${percent(of.idle_share)}`}>${of.passes.map((pass, i) => html`<span key=${i} class="pass p-${pass[2]} chunk-${pass[4] % 2}" style=${place(pass)} title=${words(pass)}>${(pass[1] - pass[0]) / ms > roomy ? pass[3] : ''}</span>`)}</span>
    <span class="num right">${percent(of.idle_share)} <span class="dim">idle</span></span></div>`;
}
