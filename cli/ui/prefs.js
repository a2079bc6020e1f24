// What this browser remembers: theme, single keys, widths. Nothing else is kept here; the rest is in the address.
// @ts-check
import { effect, signal } from './vendor/preact.js';

/** @param {string} name @param {string} fallback */
function remembered(name, fallback) {
  let first = fallback;
  try {
    first = localStorage.getItem(`odeon.${name}`) ?? fallback;
  } catch {
    // Storage may be forbidden; then nothing is remembered.
  }
  const kept = signal(first);
  effect(() => {
    const value = kept.value;
    try {
      localStorage.setItem(`odeon.${name}`, value);
    } catch {
      // As above.
    }
  });
  return kept;
}

const small = globalThis.matchMedia?.('(max-width: 760px)');
/** Whether there is little room, as the styles have it. */
export const narrow = () => small?.matches ?? false;
/** system, light or dark */
export const theme = remembered('theme', 'system');
/** on or off: shortcuts of one key (Ctrl+K stays) */
export const singleKeys = remembered('keys', 'on');
/** on or off: whether lists and lanes tell of the runtime's own actors. */
export const system = remembered('system', 'off');
/** The drawer's width in pixels. */
export const drawerWidth = remembered('drawer', '470');
/** The width of the names of lanes in pixels; as their content asks for while it is empty. */
export const gutterWidth = remembered('gutter', '');
/** The height of the panel below the timeline in pixels. */
export const panelHeight = remembered('panel', '240');

export function applyTheme() {
  effect(() => {
    document.documentElement.dataset.theme = theme.value;
  });
}

/** system, then the other one of light and dark, then back. */
export function nextTheme() {
  const order = ['system', 'light', 'dark'];
  theme.value = order[(order.indexOf(theme.value) + 1) % order.length];
}
