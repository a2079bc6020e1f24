// Splits a stream of text into server-sent events.
// @ts-check

/**
 * Lines are collected in pieces, so that a snapshot of megabytes is joined once.
 * @param {(event: { type: string, id: string, data: string }) => void} emit
 */
export function parser(emit) {
  /** @type {string[]} */
  let pieces = [];
  /** @type {string[]} */
  let data = [];
  let type = 'message';
  let id = '';

  /** @param {string} line */
  function take(line) {
    if (line === '') {
      if (data.length) emit({ type, id, data: data.join('\n') });
      data = [];
      type = 'message';
      return;
    }
    const colon = line.indexOf(':');
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const rest = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
    if (field === 'data') data.push(rest);
    else if (field === 'event') type = rest;
    else if (field === 'id') id = rest;
  }

  /** @param {string} chunk */
  return function feed(chunk) {
    let from = 0;
    for (let at = chunk.indexOf('\n'); at >= 0; at = chunk.indexOf('\n', from)) {
      pieces.push(chunk.slice(from, at));
      const line = pieces.join('');
      pieces = [];
      take(line.endsWith('\r') ? line.slice(0, -1) : line);
      from = at + 1;
    }
    if (from < chunk.length) pieces.push(chunk.slice(from));
  };
}
