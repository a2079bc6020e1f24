// What keys do on every page.
// @ts-check
import { get } from './api.js';
import { assign, quote } from './filter.js';
import { patch, route, selected, unselect } from './route.js';
import { paused } from './store.js';
import { pause } from './stream.js';
import { toward } from './view/part.js';
import { focus } from './view/table.js';

/** @param {(what: string | null) => void} show */
export function globalKeys(show) {
  return [
    { keys: ['Ctrl+k', ':'], does: 'Palette: go anywhere, run a command', run: () => show('palette') },
    { keys: ['/'], does: 'Filter this page', run: focusFilter },
    { keys: ['j', 'k', 'ArrowDown', 'ArrowUp'], does: 'Walk a table', run: () => focus.table() },
    { keys: ['Escape'], does: 'Close the topmost thing', run: close },
    { keys: ['Space'], does: 'Pause or go on', run: () => pause(!paused.peek()) },
    { keys: ['n'], does: 'Next problem', run: () => problem(1) },
    { keys: ['N'], does: 'Previous problem', run: () => problem(-1) },
    { keys: ['f'], does: 'Filter this page to the selected thing', run: follow },
    { keys: ['b'], does: 'Back', run: () => history.back() },
    { keys: ['y'], does: 'Copy a link to exactly this view', run: () => navigator.clipboard?.writeText(location.href).catch(() => {}) },
    { keys: ['?'], does: 'All keys of this page', run: () => show('help') },
  ];
}

function focusFilter() {
  const box = /** @type {HTMLInputElement | null} */ (document.querySelector('main input[type=search]'));
  box?.focus();
  box?.select();
}

function close() {
  const at = /** @type {HTMLElement | null} */ (document.activeElement);
  if (at?.matches('input')) at.blur();
  else if (selected(route.peek())) {
    unselect();
    focus.table();
  }
}

/** Follows the thing in the drawer with the filter of this page. */
async function follow() {
  const sel = selected(route.peek());
  const { page, params } = route.peek();
  if (!sel) return;
  const f = params.f ?? '';
  if (page === 'events') patch({ f: assign(f, 'subject', sel.id) }, false);
  else if (sel.kind === 'node' || sel.kind === 'job') patch({ f: assign(f, sel.kind, sel.id) }, false);
  else patch({ f: quote(sel.id) }, false);
}

let at = -1;

/** Opens the next problem's first subject, from wherever one is. @param {number} step */
async function problem(step) {
  const list = (await get('inspect/view', { view: 'now' }).catch(() => null))?.data.problems ?? [];
  const with_ = list.filter((p) => p.subjects.length);
  if (!with_.length) return;
  at = (at + step + with_.length) % with_.length;
  location.hash = toward(with_[at].subjects[0]);
}
