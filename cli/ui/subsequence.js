// Letters in order, not necessarily side by side: how the palette finds things.
// @ts-check

/**
 * Starts of words and runs count more; what is skipped counts against.
 * @param {string} wanted @param {string} text @returns {{ score: number, at: number[] } | null}
 */
export function match(wanted, text) {
  const letters = wanted.toLowerCase().replace(/\s+/g, '');
  const low = text.toLowerCase();
  const whole = low.indexOf(wanted.toLowerCase().trim());
  if (letters && whole >= 0) return { score: 100 - whole - text.length / 100 + (whole === 0 ? 50 : 0), at: Array.from(wanted.trim(), (_, i) => whole + i) };
  const at = [];
  let score = 0;
  let from = 0;
  for (const letter of letters) {
    const i = low.indexOf(letter, from);
    if (i < 0) return null;
    const begins = i === 0 || /[^a-z0-9]/.test(low[i - 1]);
    score += (i === from && at.length ? 3 : 0) + (begins ? 4 : 0) - (i - from) / 10;
    at.push(i);
    from = i + 1;
  }
  return { score: score - text.length / 100, at };
}

/**
 * The best first; without a word, everything as it comes.
 * @template T
 * @param {string} wanted @param {T[]} all @param {(x: T) => string} name @param {number} most @returns {T[]}
 */
export function rank(wanted, all, name, most) {
  if (!wanted.trim()) return all.slice(0, most);
  const found = [];
  for (const item of all) {
    const hit = match(wanted, name(item));
    if (hit) found.push({ item, score: hit.score });
  }
  return found.sort((a, b) => b.score - a.score).slice(0, most).map((f) => f.item);
}
