// Requests: the envelope out, or a failure with a kind and a sentence.
// @ts-check
/** @typedef {import('./types').Failure} Failure */

const root = '/api/v1';

/** @param {string} path @param {Record<string, any>} [query] */
export function url(path, query = {}) {
  const kept = Object.entries(query).filter(([, v]) => v !== undefined && v !== null && v !== '');
  const text = kept.map(([k, v]) => `${k}=${encodeURIComponent(String(v))}`).join('&');
  return `${root}/${path}${text ? `?${text}` : ''}`;
}

/** @param {Response} response @returns {Promise<Failure>} */
export async function failure(response) {
  const text = await response.text().catch(() => '');
  const retry_s = Number(response.headers.get('retry-after')) || undefined;
  try {
    const body = JSON.parse(text);
    return { kind: body.kind ?? 'internal', why: body.why ?? body.detail ?? 'no reason was given', request: body.request, status: response.status, retry_s };
  } catch {
    return { kind: kindOf(response.status), why: text.slice(0, 200) || `the daemon answered ${response.status}`, status: response.status, retry_s };
  }
}

/** @param {number} status */
function kindOf(status) {
  const known = { 401: 'unauthorized', 403: 'forbidden', 404: 'unknown', 429: 'too_many', 503: 'unavailable' };
  return known[status] ?? (status >= 500 ? 'internal' : 'invalid');
}

/** What a thrown thing is to a reader. @param {any} error @returns {Failure} */
export function explain(error) {
  if (error?.kind) return error;
  return { kind: 'unavailable', why: 'The daemon does not answer. Is it running? `odeon up` starts it.' };
}

/** @param {string} path @param {Record<string, any>} [query] @param {AbortSignal} [signal] */
export async function get(path, query, signal) {
  const response = await fetch(url(path, query), { signal, headers: { accept: 'application/json' } });
  if (!response.ok) throw await failure(response);
  return response.json();
}

/** @param {string} path @param {Record<string, any>} body */
export async function post(path, body) {
  const response = await fetch(url(path), {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw await failure(response);
  return response.status === 204 ? null : response.json().catch(() => null);
}

/** @param {unknown} error */
export const aborted = (error) => error instanceof DOMException && error.name === 'AbortError';
