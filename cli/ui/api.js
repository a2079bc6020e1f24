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
  const of = {
    status: response.status, retry_s: Number(response.headers.get('retry-after')) || undefined,
    request: response.headers.get('x-request-id') ?? undefined,
  };
  try {
    const { kind, why, hint } = JSON.parse(text);
    return { ...of, kind: kind ?? kindOf(of.status), why: why ?? 'no reason was given', hint };
  } catch {
    return { ...of, kind: kindOf(of.status), why: text.slice(0, 200) || `the daemon answered ${of.status}` };
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
  return { kind: 'unavailable', why: 'The daemon does not answer.', hint: 'Is it running? `odeon up` starts it.' };
}

/** The same in one line. @param {any} error */
export function words(error) {
  const { why, hint } = explain(error);
  return hint ? `${why} ${hint}` : why;
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
