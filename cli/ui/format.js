// Numbers, bytes, durations and times as people read them.
// @ts-check

const whole = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

/** 1,204 @param {number} n */
export const count = (n) => whole.format(n);

/** 1.2k, 3.4M; three digits at most. @param {number} n */
export function short(n) {
  const size = Math.abs(n);
  if (size >= 1e12) return `${digits(n / 1e12)}T`;
  if (size >= 1e9) return `${digits(n / 1e9)}G`;
  if (size >= 1e6) return `${digits(n / 1e6)}M`;
  if (size >= 1e4) return `${digits(n / 1e3)}k`;
  if (size >= 100 || Number.isInteger(n)) return whole.format(n);
  return digits(n);
}

/** Three significant digits, no exponent. @param {number} n */
export function digits(n) {
  const size = Math.abs(n);
  if (size === 0) return '0';
  if (size >= 99.95) return n.toFixed(0);
  if (size >= 9.995) return n.toFixed(1);
  if (size >= 0.0995) return n.toFixed(2);
  return n.toPrecision(2);
}

/** Powers of 1024. @param {number} n */
export function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let at = 0;
  let rest = n;
  while (Math.abs(rest) >= 1024 && at < units.length - 1) {
    rest /= 1024;
    at += 1;
  }
  return `${at === 0 ? whole.format(rest) : digits(rest)} ${units[at]}`;
}

/** @param {number} x */
export const percent = (x) => `${Math.round(x * 100)} %`;

/** A length of time in its two largest units. @param {number} ms */
export function span(ms) {
  if (ms < 0) return `-${span(-ms)}`;
  if (ms === 0) return '0 s';
  if (ms < 0.9995) return `${digits(ms * 1000)} µs`;
  if (ms < 999.5) return `${digits(ms)} ms`;
  if (ms < 9950) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${pad(s % 60)} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${pad(Math.floor(s / 60) % 60)} m`;
  return `${Math.floor(s / 86_400)} d ${Math.floor(s / 3600) % 24} h`;
}

/** An age: whole seconds, so that it changes once a second. @param {number} ms */
export const age = (ms) => (ms < 1000 ? '0 s' : span(Math.floor(ms / 1000) * 1000).replace('.0 s', ' s'));

/** 12:04:11 @param {number} at */
export function clock(at) {
  const d = new Date(at);
  return `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
}

/** 12:04:11.250 @param {number} at */
export const clockMs = (at) => `${clock(at)}.${String(Math.floor(((at % 1000) + 1000) % 1000)).padStart(3, '0')}`;

/** With the day when it is not today. @param {number} at @param {number} now */
export function when(at, now) {
  const d = new Date(at);
  const same = new Date(now).toDateString() === d.toDateString();
  return same ? clock(at) : `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${clock(at)}`;
}

/** A number with the unit that the server names. @param {number} n @param {string} unit */
export function value(n, unit) {
  if (unit === 'bytes' || unit === 'B') return bytes(n);
  if (unit === 'bytes/s' || unit === 'B/s') return `${bytes(n)}/s`;
  if (unit === 'ms') return span(n);
  if (unit === 'us') return span(n / 1000);
  if (unit === 's') return span(n * 1000);
  if (unit === 'share') return percent(n);
  if (unit === 'Hz') return `${digits(n / 1e6)} MHz`;
  return unit.startsWith('/') ? `${short(n)}${unit}` : `${short(n)} ${unit}`.trimEnd();
}

/**
 * A measured value as text, and why it is missing where it is.
 * @param {import('./types').Measured | null | undefined} v @param {(n: number) => string} show
 * @returns {{ text: string, why: string | null }}
 */
export function measured(v, show) {
  if (typeof v === 'number') return { text: show(v), why: null };
  return { text: '-', why: v?.missing ?? 'not measured' };
}

/** Bytes a second, given in gigabytes, in the unit that reads well. @param {number} gb */
export function speed(gb) {
  if (gb >= 0.1 || gb === 0) return `${digits(gb)} GB/s`;
  return gb >= 0.0001 ? `${digits(gb * 1000)} MB/s` : `${digits(gb * 1e6)} kB/s`;
}

/** What is left of something, about: seconds below a minute. @param {number} ms */
export function left(ms) {
  if (ms < 60_000) return `${Math.ceil(ms / 1000)} s`;
  return ms < 5_400_000 ? `${Math.ceil(ms / 60_000)} min` : `${(ms / 3_600_000).toFixed(1)} h`;
}

/** @param {number} n @param {string} one @param {string} [many] */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** @param {string} s */
export const capital = (s) => s.charAt(0).toUpperCase() + s.slice(1);

/** Microseconds of clock error, as the footer says it. @param {number | null} us */
export const clockError = (us) => (us === null ? 'unknown' : `±${span(us / 1000)}`);

const pad = (/** @type {number} */ n) => String(n).padStart(2, '0');
