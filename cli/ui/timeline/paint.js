// The colours of the page as a canvas needs them: computed, and read again when the theme changes.
// @ts-check

const names = ['bg', 'raised', 'hover', 'chosen', 'line', 'strong', 'text', 'dim', 'accent', 'failed', 'waiting', 'track', 'busy', 'k0', 'k1', 'k2', 'k3', 'k4', 'k5'];
/** @type {Record<string, string> | null} */
let known = null;

/** @returns {Record<string, string>} */
export function paint() {
  if (known) return known;
  const probe = document.createElement('span');
  probe.hidden = true;
  document.body.append(probe);
  /** @type {Record<string, string>} */
  const read = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    read[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  known = read;
  return read;
}

/** Forgets them. */
export function repaint() {
  known = null;
}

/** Sizes a canvas for the screen's pixels and gives its context in CSS pixels. @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
export function prepare(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const c = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  return c;
}

export const font = '11px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

/** Black or white, whichever reads better on a colour such as rgb(1, 2, 3). @param {string} colour */
export function ink(colour) {
  const [r, g, b] = (colour.match(/[\d.]+/g) ?? ['0', '0', '0']).map(Number);
  return 0.299 * r + 0.587 * g + 0.114 * b > 118 ? '#0b0e12' : '#ffffff';
}

/** The kinds in the order of their colours. */
export const kinds = ['ask', 'tell', 'handle', 'user', 'copy', 'collective'];

/** @param {Record<string, string>} p @param {string} kind */
export const colourOf = (p, kind) => p[`k${Math.max(0, kinds.indexOf(kind))}`];
