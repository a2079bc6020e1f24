// Fetches what the drawer shows, and again every second while the page is live.
// @ts-check
import { useEffect, useState } from '../vendor/preact.js';
import { aborted, explain, get } from '../api.js';
import { conn } from '../store.js';

const routes = { actor: 'actors', node: 'nodes', device: 'devices', job: 'jobs', process: 'processes', span: 'spans', transfer: 'transfers' };
const every = 1000;

/** @param {string} kind */
export const known = (kind) => kind in routes;

/** @param {string} kind @param {string} id */
export function useDetail(kind, id) {
  const [is, set] = useState(/** @type {any} */ ({ status: 'loading', data: null, error: null, of: '' }));
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const control = new AbortController();
    const path = `inspect/${routes[kind]}/${id.split('/').map(encodeURIComponent).join('/')}`;
    let timer = 0;
    const once = async () => {
      try {
        const envelope = await get(path, {}, control.signal);
        set({ status: 'ready', data: envelope.data, error: null, of: `${kind}:${id}` });
      } catch (error) {
        if (aborted(error)) return;
        const why = explain(error);
        set((old) => (old.data && why.kind === 'unavailable' ? old : { status: 'error', data: null, error: why, of: `${kind}:${id}` }));
      }
      timer = Number(setTimeout(next, every));
    };
    const next = () => {
      if (conn.peek().phase === 'live' && kind !== 'span') once();
      else timer = Number(setTimeout(next, every));
    };
    once();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [kind, id, turn]);
  const mine = is.of === `${kind}:${id}` ? is : { status: 'loading', data: null, error: null };
  return { ...mine, again: () => setTurn((n) => n + 1) };
}
