// The address: which page, and everything that makes this view this view.
// @ts-check
import { signal } from './vendor/preact.js';
/** @typedef {import('./types').Route} Route */

export const pages = ['now', 'problems', 'cluster', 'actors', 'jobs', 'runs', 'timeline', 'transfers', 'events'];

/** An address that names no page is that of the first one, and says which it asked for. @param {string} hash @returns {Route} */
export function parse(hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split('?');
  const params = Object.fromEntries(new URLSearchParams(query));
  if (pages.includes(path) || !path) return { page: path || 'now', params };
  return { page: 'now', params, unknown: path };
}

/** @param {string} page @param {Record<string, string | null | undefined>} [params] */
export function href(page, params = {}) {
  const kept = Object.entries(params).filter(([, v]) => v !== null && v !== undefined && v !== '');
  const query = kept.map(([k, v]) => `${k}=${encode(String(v))}`).join('&');
  return `#/${page}${query ? `?${query}` : ''}`;
}

/** Leaves the characters readable that a hash may hold. @param {string} s */
const encode = (s) => encodeURIComponent(s).replace(/%3A/g, ':').replace(/%2F/g, '/').replace(/%3E/g, '>').replace(/%2C/g, ',');

/** @type {import('./vendor/preact.js').Signal<Route>} */
export const route = signal(parse(globalThis.location?.hash ?? ''));

/**
 * Changes parameters of this page. Replacing keeps the browser's history free of keystrokes.
 * @param {Record<string, string | null | undefined>} params @param {boolean} [replace]
 */
export function patch(params, replace = true) {
  const { page, params: old } = route.peek();
  move(href(page, { ...old, ...params }), replace);
}

/** @param {string} sort a column of a table */
export const sortBy = (sort) => patch({ sort });

/** @param {string} page @param {Record<string, string | null | undefined>} [params] */
export const go = (page, params = {}) => move(href(page, params), false);

/** @param {string} hash @param {boolean} replace */
export function move(hash, replace) {
  if (hash === location.hash) return;
  history[replace ? 'replaceState' : 'pushState'](history.state, '', hash);
  route.value = parse(hash);
}

/** Follows the browser's own moves. @param {() => void} first what is done before the address is read */
export function listen(first) {
  const read = () => {
    first();
    route.value = parse(location.hash);
  };
  addEventListener('popstate', read);
  addEventListener('hashchange', read);
}

/** What the drawer shows: kind and id. @param {Route} r @returns {{ kind: string, id: string } | null} */
export function selected(r) {
  const sel = r.params.sel ?? '';
  const at = sel.indexOf(':');
  return at > 0 ? { kind: sel.slice(0, at), id: sel.slice(at + 1) } : null;
}

/** The thing of a kind that the drawer shows. @param {string} kind */
export function chosen(kind) {
  const sel = selected(route.value);
  return sel?.kind === kind ? sel.id : null;
}

/** Opens the drawer on this page. @param {string} kind @param {string} id */
export const select = (kind, id) => patch({ sel: `${kind}:${id}` }, selected(route.peek()) !== null);

export const unselect = () => patch({ sel: null }, true);
