// Is anything wrong, and what changed in the last minutes.
// @ts-check
import { html } from '../vendor/preact.js';
import { plural } from '../format.js';
import { href } from '../route.js';
import { useView } from '../stream.js';
import { EventLines } from '../view/eventline.js';
import { Bar } from '../view/filterbox.js';
import { State } from '../view/glyph.js';
import { Strip } from '../view/nodes.js';
import { Age, Link, Section, toward } from '../view/part.js';
import { Series } from '../view/spark.js';
import { Empty, View } from '../view/states.js';

export function Now() {
  const is = useView({ view: 'now' });
  const d = is.data;
  const empty = d && !d.nodes.length && !d.problems.length && !d.events.length;
  return html`<${Bar} title="Now" />
    <${View} of=${is} isEmpty=${empty} skeleton="blocks" empty=${html`<${Empty} title="Nothing runs yet" why="Nodes, actors and problems appear here as soon as something starts." command="odeon run recipes/rl-sums.toml" />`}>
      ${d ? html`<div class="page now">
        <${Problems} of=${d.problems} />
        <${Section} title="Rates" note="last 15 minutes"><div class="rates">${d.series.map((s) => html`<${Series} key=${s.name} of=${s} />`)}</div><//>
        <div class="two"><${Section} title="Cluster" note=${html`<a href=${href('cluster')}>all of it</a>`}><ul class="strips">${d.nodes.map((n) => html`<${Strip} key=${n.name} of=${n} />`)}</ul><//>
        <${Section} title="Events" note=${html`<a href=${href('events')}>all of them</a>`}><${EventLines} of=${[...d.events].reverse()} label="Last events" /><//></div>
      </div>` : null}
    <//>`;
}

/** @param {{ of: any[] }} props */
function Problems({ of }) {
  const order = [...of].sort((a, b) => Number(b.severity === 'error') - Number(a.severity === 'error') || b.since - a.since);
  return html`<${Section} title="Problems" note=${of.length ? plural(of.length, 'finding') : ''}>
    ${of.length ? html`<ul class="problems">${order.map((p) => html`<${Problem} key=${`${p.lint}${p.sentence}`} of=${p} />`)}</ul>`
      : html`<p class="calm"><${State} of="ok" word="Nothing is wrong." /> <span class="dim">No lint holds.</span></p>`}<//>`;
}

/** @param {{ of: any }} props */
function Problem({ of: p }) {
  const more = p.count - p.subjects.length;
  const first = p.subjects[0];
  const open = (e) => {
    if (first && !e.target.closest('a') && !String(getSelection())) location.hash = toward(first);
  };
  return html`<li class="problem ${first ? 'opens' : ''}" onClick=${open}><${State} of=${p.severity} word=${p.count > 1 ? plural(p.count, p.severity) : p.severity === 'error' ? 'Error' : 'Warning'} />
    <span class="what"><span class="sentence">${p.sentence}</span> <span class="subjects">${p.subjects.map((s) => html`<${Link} key=${s.kind + s.id} to=${s} /> `)}${more > 0 && p.subjects.length ? html`<span class="dim">and ${more} more</span>` : null}</span></span>
    <span class="dim num lint">${p.lint.replaceAll('_', ' ')}</span><span class="dim since"><${Age} since=${p.since} /></span></li>`;
}
