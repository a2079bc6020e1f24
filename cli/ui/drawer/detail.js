// Fetches what the stream does not tell, and again and again while the page is live.
// @ts-check
import { useEffect, useState } from '../vendor/preact.js';
import { aborted, explain, get } from '../api.js';
import { conn } from '../store.js';

const routes = { actor: 'actors', node: 'nodes', device: 'devices', job: 'jobs', process: 'processes', span: 'spans', transfer: 'transfers' };
const every = 1000;

/** @param {string} kind */
export const known = (kind) => kind in routes;

/**
 * @param {string} key another one asks anew @param {(signal: AbortSignal) => Promise<any>} ask
 * @param {number} again after how many milliseconds; Infinity for once
 * @param {string} of what is asked about: of the same, what came last stays until other comes
 */
export function usePolled(key, ask, again = Infinity, of = key) {
  const [is, set] = useState(/** @type {any} */ ({ status: 'loading', data: null, error: null, of: '' }));
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const control = new AbortController();
    let timer = 0;
    const wait = () => {
      if (again < Infinity) timer = Number(setTimeout(next, again));
    };
    const once = async () => {
      try {
        const data = await ask(control.signal);
        set({ status: 'ready', data, error: null, of });
      } catch (error) {
        if (aborted(error)) return;
        const why = explain(error);
        set((old) => (old.data && old.of === of && why.kind === 'unavailable' ? old : { status: 'error', data: null, error: why, of }));
      }
      wait();
    };
    const next = () => (conn.peek().phase === 'live' ? once() : wait());
    once();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [key, turn]);
  const mine = is.of === of ? is : { status: 'loading', data: null, error: null };
  return { ...mine, again: () => setTurn((n) => n + 1) };
}

/** What the drawer shows. @param {string} kind @param {string} id */
export function useDetail(kind, id) {
  const path = `inspect/${routes[kind]}/${id.split('/').map(encodeURIComponent).join('/')}`;
  return usePolled(`${kind}:${id}`, (signal) => get(path, {}, signal).then((e) => e.data), kind === 'span' ? Infinity : every);
}
