// Small pieces that every page uses: links to things, measured values, bars, facts.
// @ts-check
import { html } from '../vendor/preact.js';
import { age, count, left, measured, percent } from '../format.js';
import { narrow } from '../prefs.js';
import { href, route } from '../route.js';
import { now } from '../store.js';
import { sentence } from '../waits.js';
import { State } from './glyph.js';

/** The address of this page with a thing in the drawer. @param {{ kind: string, id: string, name?: string }} subject */
export function toward(subject) {
  const { page, params } = route.value;
  if (subject.kind === 'run') return href('runs', { run: subject.id });
  if (subject.kind === 'link') return href('cluster', { links: '1' });
  return href(page, { ...params, sel: `${subject.kind}:${subject.id}` });
}

/** @param {{ to?: import('../types').Subject | null, node?: string, word?: string }} props */
export function Link({ node, to = node ? { kind: 'node', id: node, name: node } : null, word }) {
  if (!to) return html`<span class="dim">${word ?? '-'}</span>`;
  return html`<a class="thing" href=${toward(to)} title=${`${to.kind} ${to.id}`}>${word || to.name || to.id}</a>`;
}

/** A dash with its reason where nothing was measured; of what is gone, what it was. @param {{ of: any, show: (n: number) => string, gone?: boolean }} props */
export function Measured({ of, show, gone = false }) {
  const { text, why } = measured(of, show);
  if (gone && !why) return html`<span class="dim" title="when it was last seen">was ${text}</span>`;
  return why ? none(why) : html`<span>${text}</span>`;
}

/** A dash, and why nothing stands there. @param {string} why */
export const none = (why) => html`<span class="missing" title=${why}>-<span class="hidden"> (${why})</span></span>`;

/** A share as a bar; the number stands beside it. @param {{ share: number, tone?: string, label?: string }} props */
export function Bar({ share, tone = 'accent', label }) {
  const width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return html`<span class="bar" title=${label ?? percent(share)}><span class="fill tone-${tone}" style=${{ width }} /></span>`;
}

/** How far a run is. @param {{ of: any }} props */
export function Progress({ of: r }) {
  const { done, of, unit } = r.progress;
  const share = of ? done / of : 0;
  const rest = r.state === 'running' && share > 0.01 ? ((now.value - r.started) / share) * (1 - share) : null;
  return html`<p><b>${count(done)}</b>${of ? ` of ${count(of)}` : null} ${unit} <span class="dim num">${of ? percent(share) : ''}${rest ? `, about ${left(rest)} left` : ''}</span></p>${of ? html`<${Bar} share=${share} />` : null}`;
}

/** What a share in handlers is made of: those that wait in a handler are busy, too. @param {number} busy @param {number} waiting */
function shares(busy, waiting) {
  const waits = Math.max(0, Math.min(1, waiting));
  const works = Math.max(0, Math.min(1, busy) - waits);
  return { works, waits, idle: Math.max(0, 1 - works - waits) };
}

/** @param {number} busy @param {number} waiting */
export function split(busy, waiting) {
  const { works, waits, idle } = shares(busy, waiting);
  return `works ${percent(works)}, waits ${percent(waits)}, idle ${percent(idle)}`;
}

/** Work, waiting and idleness of one actor in one bar. @param {{ busy: number, waiting: number }} props */
export function Split({ busy, waiting }) {
  const { works, waits } = shares(busy, waiting);
  return html`<span class="bar split" title=${split(busy, waiting)}>
    <span class="fill tone-busy" style=${{ width: `${works * 100}%` }} /><span class="fill tone-waiting" style=${{ width: `${waits * 100}%` }} />
    <span class="hidden">${split(busy, waiting)}</span></span>`;
}

/** How long something has gone on. @param {{ since: number }} props */
export function Age({ since }) {
  return html`<span class="num">${age(Math.max(0, now.value - since))}</span>`;
}

/** Whom something waits for, to the end of the chain. @param {{ of: import('../types').Subject, chain: import('../types').Hop[], circle: boolean, deadlock?: boolean }} props */
export function Waits({ of, chain, circle, deadlock }) {
  return html`<${State} of=${deadlock ? 'error' : 'waiting'} word=${deadlock ? 'Deadlock' : 'Waits'} /> ${sentence(of, chain, circle, now.value, deadlock).map((p) => (typeof p === 'string' ? p : html`<${Link} to=${p} />`))}`;
}

/** A list of names and values. @param {{ of: [string, any][] }} props */
export function Facts({ of }) {
  return html`<dl class="facts">${of.filter(([, v]) => v !== null && v !== undefined && v !== false)
    .map(([k, v]) => html`<div key=${k}><dt>${k}</dt><dd>${v}</dd></div>`)}</dl>`;
}

/** Causes, outermost first. @param {{ of: string[] }} props */
export function Chain({ of }) {
  if (!of?.length) return null;
  return html`<ol class="chain">${of.map((text, i) => html`<li key=${i}><span class="dim">${i === 0 ? '' : 'because '}</span>${text}</li>`)}</ol>`;
}

/** The words of a failure, as many lines as they have. @param {{ of: string }} props */
export const Words = ({ of }) => html`<p class="ended tone-failed words" tabindex="0" role="region" aria-label="Why it failed">${of}</p>`;

/** A heading with what belongs beside it. @param {{ title: any, children?: any, note?: any }} props */
export function Section({ title, children, note }) {
  return html`<section class="section"><header class="rule"><h2>${title}</h2>${note ? html`<span class="note">${note}</span>` : null}</header>${children}</section>`;
}

/** A plain table for few rows. @param {{ head: any[], rows: any[][], label: string, right?: number[], tone?: (i: number) => string }} props */
export function Rows({ head, rows, label, right = [], tone }) {
  const side = (/** @type {number} */ i) => (right.includes(i) ? 'right' : '');
  return html`<${Wide} label=${label}><table class="plain ${head.length > (narrow() ? 4 : 5) ? 'many' : ''}" aria-label=${label}>
    <thead><tr>${head.map((h, i) => html`<th scope="col" class=${side(i)}>${h}</th>`)}</tr></thead>
    <tbody>${rows.map((row, i) => html`<tr key=${i} class=${tone?.(i) ?? ''}>${row.map((cell, j) => html`<td class=${side(j)} data-head=${head[j]}>${cell}</td>`)}</tr>`)}</tbody>
  </table><//>`;
}

/** What may be wider than its place. @param {{ label: string, children?: any }} props */
export const Wide = ({ label, children }) => html`<div class="scroll-x" tabindex="0" role="region" aria-label=${label}>${children}</div>`;

/**
 * An edge that is dragged, or moved with arrow keys; a double click lets it be as it was.
 * @param {{ label: string, at: number, least: number, side: 1 | -1, set: (width: string) => void }} props
 */
export function Grip({ label, at, least, side, set }) {
  const to = (/** @type {number} */ w) => set(String(Math.round(Math.max(least, Math.min(innerWidth * 0.7, w)))));
  const drag = ({ currentTarget: el, clientX, pointerId }) => {
    el.setPointerCapture(pointerId);
    el.onpointermove = (m) => to(at + side * (m.clientX - clientX));
    el.onpointerup = () => { el.onpointermove = null; };
  };
  const key = (e) => {
    const step = { ArrowLeft: -20, ArrowRight: 20 }[e.key];
    if (!step) return;
    e.preventDefault();
    e.stopPropagation();
    to(at + side * step);
  };
  return html`<div class="grip" role="separator" aria-orientation="vertical" aria-label=${label} tabindex="0" aria-valuenow=${at} aria-valuemin=${least} aria-valuemax="2000"
    onPointerDown=${drag} onKeyDown=${key} onDblClick=${() => set('')} />`;
}

/** A button that is on or off. @param {{ on: boolean, children?: any, onClick: () => void, title?: string }} props */
export function Toggle({ on, children, onClick, title }) {
  return html`<button class="chip" aria-pressed=${on ? 'true' : 'false'} onClick=${onClick} title=${title}>${children}</button>`;
}

/** @param {{ id: string, name: string | null, type: string }} row */
export const nameOf = (row) => row.name ?? `${row.type} ${row.id.split('.').pop()}`;

/** The job under whose tag a process runs: `team/j17.2` is `j17`. @param {string} tag */
export const jobOf = (tag) => ({ kind: 'job', id: tag.slice(tag.lastIndexOf('/') + 1).split('.')[0], name: tag });

/** What runs outside of jobs has a tag, too, which leads nowhere. @param {{ of: string | null }} props */
export function Job({ of: tag }) {
  if (!tag) return html`<span class="dim">-</span>`;
  if (!/(^|\/)j\d+(\.\d+)?$/.test(tag)) return html`<span class="dim">${tag}</span>`;
  return html`<${Link} to=${jobOf(tag)} word=${tag.replace('default/', '')} />`;
}

/** @param {any} row */
export const subjectOf = (row) => ({ kind: 'actor', id: row.id, name: nameOf(row) });
