// Puts markup into every text that users may choose, to see that none of it is ever taken for markup.

const keys = new Set(['name', 'sentence', 'text', 'message', 'cause', 'why', 'what', 'error', 'title', 'type', 'needs', 'program', 'by', 'asked', 'free', 'namespace', 'recipe', 'folder', 'shadow', 'last_break', 'address', 'version']);
const lists = new Set(['chain', 'arguments', 'names', 'rows', 'columns']);
const bad = '<img src=x onerror=alert(1)>';

/** @param {any} x @returns {any} */
export function evil(x) {
  if (Array.isArray(x)) return x.map(evil);
  if (x === null || typeof x !== 'object') return x;
  return Object.fromEntries(Object.entries(x).map(([k, v]) => {
    if (typeof v === 'string' && keys.has(k)) return [k, bad + v];
    if (lists.has(k) && Array.isArray(v) && typeof v[0] === 'string') return [k, v.map((s) => bad + s)];
    return [k, evil(v)];
  }));
}
