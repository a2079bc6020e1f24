// Numbers that look random and are the same every time.

/** @param {number} seed */
export function chance(seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  return { next, below: (n) => Math.floor(next() * n), pick: (all) => all[Math.floor(next() * all.length)], between: (a, b) => a + next() * (b - a) };
}

/** A smooth wave between 0 and 1, another for every number. */
export const wave = (at, i, period = 40_000) => 0.5 + 0.5 * Math.sin((at / period) * Math.PI * 2 + i * 1.7) * Math.cos((at / period / 3) * Math.PI * 2 + i);

/** A series of points one second apart up to now. */
export function series(name, title, unit, at, length, f) {
  const until = Math.floor(at / 1000) * 1000;
  return { name, title, unit, points: Array.from({ length }, (_, i) => [until - (length - 1 - i) * 1000, f(until - (length - 1 - i) * 1000)]) };
}
