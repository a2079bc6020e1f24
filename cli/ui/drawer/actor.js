// An actor: whom it waits for, what it handled, where it stands, how its lives ended.
// @ts-check
import { html, useState } from '../vendor/preact.js';
import { post, words } from '../api.js';
import { count, plural, short, digits, span, when } from '../format.js';
import { href } from '../route.js';
import { about, now } from '../store.js';
import { Doing, Few, filled } from '../view/actorrow.js';
import { State, looks } from '../view/glyph.js';
import { Logs } from '../view/logs.js';
import { Age, Chain, Facts, Job, Link, Rows, Section, Split, Waits, nameOf, split, subjectOf } from '../view/part.js';
import { AllSeries } from '../view/spark.js';
import { Spans } from '../view/spans.js';
import { Title } from './title.js';

export function ActorBody({ of: d }) {
  const r = d.row;
  return html`<${Title} state=${r.state} title=${nameOf(r)} sub=${html`for <${Age} since=${r.since} />`} />
    ${d.chain?.length ? html`<p class="waits ${d.deadlock ? 'circle' : ''}"><${Waits} of=${subjectOf(r)} chain=${d.chain} circle=${d.circle} deadlock=${d.deadlock} /></p>` : null}
    ${r.ended ? html`<p class="ended ${r.state === 'failed' ? 'tone-failed' : ''}">${r.ended.sentence} <span class="dim">${when(r.ended.at, now.value)}</span></p>` : null}
    <${Facts} of=${facts(r, d)} />
    <${Actions} row=${r} />
    <${AllSeries} of=${[d.series?.rate, d.series?.mailbox]} />
    <${Lives} of=${d.lives ?? []} />
    <${Messages} of=${d} />
    <${Children} of=${d} />
    ${d.spans?.length ? html`<${Section} title="Last spans" note=${html`<a href=${href('timeline', { f: r.id, sel: `actor:${r.id}` })}>in the timeline</a>`}><${Spans} of=${d.spans} label="Last spans" /><//>` : null}
    <${Logs} query=${{ actor: r.id }} title="Log of its process" />`;
}

/** @param {any} r @param {any} d @returns {[string, any][]} */
function facts(r, d) {
  const line = (d.lineage ?? []).slice(0, -1);
  return [
    ['does', r.ended ? null : html`<${Doing} row=${r} />`],
    ['type', html`<code>${r.type}</code>${r.system ? ' (of the system)' : ''}`],
    ['place', html`<${Link} node=${r.node} /> / <${Link} to=${{ kind: 'process', id: r.process, name: `process ${r.process}` }} />${r.devices.map((g) => html` / <${Link} to=${{ kind: 'device', id: g, name: g }} />`)}`],
    ['why there', d.placement?.sentence],
    ['job', r.job ? html`<${Job} of=${r.job} />` : null],
    ['under', line.length ? html`${line.map((s, i) => html`${i ? ' > ' : ''}<${Link} to=${s} />`)}` : 'nobody: a root'],
    ['mailbox', filled(r.mailbox)],
    ['messages', `${count(r.received)} received, ${count(r.handled)} handled, ${count(r.failed)} failed, ${short(Number(digits(r.rate)))}/s`],
    ['time', html`<${Split} busy=${r.busy} waiting=${r.waiting} /> ${split(r.busy, r.waiting)}`],
  ];
}

/** Its lives as a strip: length is time, a cross is a failure. @param {{ of: any[] }} props */
function Lives({ of }) {
  if (!of.length) return null;
  const first = of[0].from;
  const all = Math.max(1, now.value - first);
  const worst = of.filter((l) => l.cause);
  return html`<${Section} title="Lives" note=${plural(of.length, 'incarnation')}>
    <div class="lives" role="img" aria-label=${`${of.length} incarnations, ${worst.length} ended by a cause`}>${of.map((l) => html`<span key=${l.number} class=${l.to === null ? 'going' : l.cause ? 'fell' : 'over'} style=${{ flexGrow: String(Math.max(2, (100 * ((l.to ?? now.value) - l.from)) / all)) }} title=${`#${l.number}: ${span((l.to ?? now.value) - l.from)}${l.cause ? `, ${l.cause}` : ''}`} />`)}</div>
    <ol class="causes" reversed>${[...worst].reverse().slice(0, 5).map((l) => html`<li key=${l.number}><span class="tone-failed">#${l.number} ${l.cause}</span> <span class="dim">after ${span(l.to - l.from)}</span><${Chain} of=${l.chain} /></li>`)}</ol><//>`;
}

function Messages({ of: d }) {
  if (!d.messages?.length) return null;
  const us = (q) => (typeof q?.p50 === 'number' ? `${span(q.p50 / 1000)} / ${span(q.p99 / 1000)}` : '-');
  const rows = d.messages.map((m) => [m.name, count(m.count), m.failed ? html`<span class="tone-failed">${count(m.failed)}</span>` : '0', us(m.handling_us), us(m.waiting_us)]);
  if (d.all_messages && rows.length > 1) rows.push([html`<span class="dim">all</span>`, '', '', us(d.all_messages.handling_us), us(d.all_messages.waiting_us)]);
  return html`<${Section} title="Messages" note="p50 / p99"><${Rows} label="Messages" head=${['type', 'handled', 'failed', 'handling', 'in mailbox']} right=${[1, 2, 3, 4]} rows=${rows} /><//>`;
}

function Children({ of: d }) {
  if (!d.children?.count) return null;
  const states = Object.entries(d.children.by_state).filter(([, n]) => n);
  return html`<${Section} title="Children" note=${count(d.children.count)}>
    <p class="spread">${states.map(([s, n]) => html`<${State} key=${s} of=${s} word=${`${n} ${looks(s).word.toLowerCase()}`} />`)}</p><${Few} rows=${d.children.some} label="Children" /><//>`;
}

/** Only where the daemon allows them. @param {{ row: any }} props */
function Actions({ row }) {
  const [said, say] = useState('');
  const [sure, setSure] = useState('');
  if (!about.value?.allow_actions || ['stopped', 'failed'].includes(row.state)) return null;
  const act = async (/** @type {string} */ what) => {
    if (sure !== what) return setSure(what);
    setSure('');
    const answer = await post(`inspect/actions/${what}`, { actor: row.id }).catch((error) => ({ sentence: words(error) }));
    say(answer?.sentence ?? `asked to ${what}`);
  };
  return html`<p class="spread">${['stop', 'restart'].map((w) => html`<button key=${w} class="button ${sure === w ? 'tone-failed' : ''}" onClick=${() => act(w)}>${sure === w ? `Really ${w}?` : w}</button>`)}</p>${said ? html`<pre class="said" role="status" tabindex="0">${said}</pre>` : null}`;
}
