// The filter language: words that must all hold, the same here as on the server.
// @ts-check
/** @typedef {import('./types').Term} Term */

const words = ['state', 'type', 'node', 'job', 'name', 'system', 'kind', 'severity', 'subject', 'process', 'device'];
const numbers = ['mailbox', 'rate', 'restarts', 'age', 'busy', 'waiting', 'failed', 'received', 'handled'];
const units = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 };

/** What an actor may be at. @type {Record<string, string[]>} */
const ofActors = { state: ['starting', 'idle', 'busy', 'waiting', 'restarting', 'stopped', 'failed'] };
/** What an event may be. @type {Record<string, string[]>} */
export const ofEvents = {
  kind: ['failure', 'restart', 'started', 'stopped', 'node', 'job', 'problem', 'device'], severity: ['error', 'warning', 'info'],
};

/** What may stand before a colon or a comparison. */
export const keys = { words, numbers };

/**
 * @param {string} text @param {Record<string, string[]>} values what may stand behind the keys that take one of a few
 * @returns {{ terms: Term[], error: string | null }}
 */
export function parse(text, values = ofActors) {
  const terms = [];
  for (const word of split(text)) {
    const term = read(word, values);
    if (typeof term === 'string') return { terms, error: term };
    terms.push(term);
  }
  return { terms, error: null };
}

/** Splits at blanks outside quotes. @param {string} text @returns {string[]} */
export function split(text) {
  return text.match(/(?:[^\s"]+|"[^"]*"?)+/g) ?? [];
}

/** @param {string} word @param {Record<string, string[]>} values @returns {Term | string} */
function read(word, values) {
  const not = word.length > 1 && word.startsWith('-');
  const body = not ? word.slice(1) : word;
  const found = /^([a-z_]+)([:><])(.*)$/s.exec(body);
  if (!found || !(words.includes(found[1]) || numbers.includes(found[1]))) {
    return { not, key: '', op: ':', value: unquote(body).toLowerCase(), number: 0 };
  }
  const [, key, op, raw] = found;
  const value = unquote(raw).toLowerCase();
  const among = op === ':' ? values[key] : undefined;
  if (among && !among.includes(value)) return `${value ? `no ${key} is called ${value}` : `${key}: wants one`}: ${among.join(', ')}`;
  if (op === ':') return { not, key, op: ':', value, number: 0 };
  if (words.includes(key)) return `${key} is compared with a colon: ${key}:${value || 'word'}`;
  const number = key === 'age' ? duration(value) : Number(value);
  if (value === '' || !Number.isFinite(number)) return `${key}${op} wants ${key === 'age' ? 'a time such as 10s' : 'a number'}`;
  return { not, key, op: op === '>' ? '>' : '<', value, number };
}

const unquote = (/** @type {string} */ s) => s.replaceAll('"', '');

/** @param {string} text */
export function duration(text) {
  const found = /^([\d.]+)(ms|s|m|h)?$/.exec(text);
  return found ? Number(found[1]) * units[found[2] ?? 's'] : NaN;
}

/** System actors stay hidden unless the filter speaks of them. @param {string} text */
export const mentionsSystem = (text) => /(^|\s|-)system\b/.test(text);

/** The filter with system actors, where the page shows them and it does not speak of them. @param {string} text @param {boolean} on */
export const withSystem = (text, on) => (on && !mentionsSystem(text) ? `${text} system:any`.trimStart() : text);

/**
 * @param {Term[]} terms @param {import('./types').ActorRow} row @param {number} now
 */
export const matches = (terms, row, now) => terms.every((t) => holds(t, row, now) !== t.not);

/** @param {Term} t @param {any} row @param {number} now */
function holds(t, row, now) {
  if (t.key === '') return [row.name, row.type, row.id].some((s) => s && s.toLowerCase().includes(t.value));
  if (t.key === 'system') return t.value === 'any' || row.system === (t.value !== 'no');
  if (t.key === 'device') return row.devices.some((/** @type {string} */ d) => d.toLowerCase().includes(t.value));
  if (t.op === ':') return String(row[t.key] ?? '').toLowerCase().includes(t.value);
  const n = measure(t.key, row, now);
  return t.op === '>' ? n > t.number : n < t.number;
}

/** @param {string} key @param {any} row @param {number} now */
function measure(key, row, now) {
  if (key === 'mailbox') return row.mailbox.len;
  if (key === 'age') return row.current ? now - row.current.since : -1;
  return row[key];
}

/** Puts a term in, or takes it out when it is there. @param {string} text @param {string} term */
export function toggle(text, term) {
  const all = split(text);
  const at = all.indexOf(term);
  if (at >= 0) all.splice(at, 1);
  else all.push(term);
  return all.join(' ');
}

/** Replaces every term of the key. @param {string} text @param {string} key @param {string} value */
export function assign(text, key, value) {
  const rest = split(text).filter((w) => !w.replace(/^-/, '').startsWith(`${key}:`));
  return (value ? [...rest, `${key}:${quote(value)}`] : rest).join(' ');
}

/** @param {string} s */
export const quote = (s) => (/\s/.test(s) ? `"${s.replaceAll('"', '')}"` : s);
