// Memory by rank: what the settings ask for, and what is seen of its process.
// @ts-check
import { html } from '../vendor/preact.js';
import { bytes, measured, plural } from '../format.js';
import { Rows, Section, none } from './part.js';
/** @typedef {import('./mesh.js').Rank} Rank */

/** From so many ranks on those with the same memory share a row. */
const roomy = 16;
/** Pieces of a list of ranks that are spelled out. */
const piecesMax = 4;
const kinds = ['parameters', 'gradients', 'optimizer', 'gathered', 'activations'];
const titles = { optimizer: 'optimiser' };

/** Numbers in order as ranges: `0-3, 8`. @param {number[]} numbers */
export function ranges(numbers) {
  /** @type {[number, number][]} */
  const runs = [];
  for (const n of numbers) {
    const last = runs[runs.length - 1];
    if (last && last[1] === n - 1) last[1] = n;
    else runs.push([n, n]);
  }
  const words = runs.slice(0, piecesMax).map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`));
  return runs.length > piecesMax ? `${words.join(', ')}, ...` : words.join(', ');
}

/** Ranks with the same memory together, where there are many. @param {Rank[]} ranks @returns {Rank[][]} */
export function alike(ranks) {
  if (ranks.length <= roomy) return ranks.map((r) => [r]);
  const by = new Map();
  for (const r of ranks) {
    // Activations differ from rank to rank by a batch: the most is told of those that are alike otherwise.
    const key = JSON.stringify(r.memory && { ...r.memory, activations: 0 });
    by.set(key, [...(by.get(key) ?? []), r]);
  }
  return [...by.values()];
}

const sum = (/** @type {any} */ m) => kinds.reduce((all, k) => all + (m[k] ?? 0), 0);

/** The memory of ranks that are alike: of activations the most. @param {Rank[]} group */
export const most = (group) => group[0].memory && { ...group[0].memory, activations: Math.max(...group.map((r) => r.memory?.activations ?? 0)) };

/** What is present, from the least to the most; why it is not known. @param {Rank[]} group */
function resident(group) {
  const known = group.map((r) => r.resident).filter((v) => typeof v === 'number');
  if (!known.length) return none(measured(group[0].resident, bytes).why ?? 'not measured');
  const [least, most] = [bytes(Math.min(...known)), bytes(Math.max(...known))];
  return html`<span>${least === most ? most : `${least} to ${most}`}</span>`;
}

/** @param {{ of: { ranks: Rank[] } }} props */
export function Memory({ of }) {
  if (!of.ranks.some((r) => r.memory)) return null;
  const groups = alike(of.ranks);
  const shown = kinds.filter((k) => of.ranks.some((r) => r.memory?.[k]));
  const largest = Math.max(1, ...of.ranks.map((r) => (r.memory ? sum(r.memory) : 0)));
  const head = [groups.length < of.ranks.length ? 'ranks' : 'rank', ...shown.map((k) => titles[k] ?? k), 'in all', 'made of', 'resident'];
  const rows = groups.map((group) => {
    const m = most(group);
    const name = html`<b>${ranges(group.map((r) => r.rank))}</b>${group.length > 1 ? html` <span class="dim">${plural(group.length, 'rank')}</span>` : null}`;
    if (!m) return [name, ...shown.map(() => none('it has not told yet')), none('it has not told yet'), '', resident(group)];
    return [name, ...shown.map((k) => html`<span class="num">${bytes(m[k])}</span>`), html`<b class="num">${bytes(sum(m))}</b>`, html`<${Stack} of=${m} shown=${shown} most=${largest} />`, resident(group)];
  });
  return html`<${Section} title="Memory by rank" note="as the settings ask for it, with activations as its passes have held them so far at most; and what is resident of its process">
    <p class="legend dim">${shown.map((k) => html`<span key=${k}><span class="swatch m-${k}" /> ${titles[k] ?? k}</span>`)}</p>
    <${Rows} label="Memory by rank" head=${head} right=${shown.map((_, i) => i + 1).concat(shown.length + 1)} rows=${rows} /><//>`;
}

/** What memory is made of, beside that of the largest rank. @param {{ of: any, shown: string[], most: number }} props */
function Stack({ of, shown, most }) {
  return html`<span class="bar stack" aria-hidden="true">${shown.map((k) => html`<span key=${k} class="m-${k}" style=${{ width: `${(of[k] / most) * 100}%` }} />`)}</span>`;
}
