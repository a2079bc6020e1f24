// Begins a page that is one file: modules out of the sources in it, each after those that it needs.
// @ts-check
(async () => {
  const text = (/** @type {string} */ id) => document.getElementById(id)?.textContent ?? '';
  const sources = JSON.parse(text('sources'));
  /** @type {Map<string, string>} */
  const made = new Map();
  const needs = /(\bfrom\s*|\bimport\s*)(['"])(\.[^'"]+)\2/g;

  /** @param {string} path */
  const address = (path) => {
    const known = made.get(path);
    if (known) return known;
    const linked = sources[path].replace(needs, (_, word, quote, to) => `${word}${quote}${address(beside(path, to))}${quote}`);
    const url = URL.createObjectURL(new Blob([linked], { type: 'text/javascript' }));
    made.set(path, url);
    return url;
  };

  /** @param {string} path @param {string} to */
  const beside = (path, to) => {
    const parts = path.split('/').slice(0, -1);
    for (const part of to.split('/')) {
      if (part === '..') parts.pop();
      else if (part !== '.') parts.push(part);
    }
    return parts.join('/');
  };

  const { begin } = await import(address('offline/answers.js'));
  await begin(text('holds'));
  await import(address('app.js'));
})();
