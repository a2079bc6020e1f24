// The rules of this folder: sizes, first lines, what is never written, what is vendored.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync, readdirSync, statSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const walk = (folder) => readdirSync(folder, { withFileTypes: true }).flatMap((e) => (e.isDirectory() ? walk(join(folder, e.name)) : [join(folder, e.name)]));
const files = walk(root).map((path) => ({ path, name: relative(root, path), bytes: statSync(path).size }));
const sources = files.filter((f) => /\.(m?js|css|html|ts)$/.test(f.name) && !/^vendor\/(preact|uplot)\.(js|css)$/.test(f.name));

test('what a browser loads is within 415 KB, what is vendored of it within 85 KB, what only exported files run within 12 KB', () => {
  const sum = (all) => all.reduce((n, f) => n + f.bytes, 0);
  const served = files.filter((f) => /\.(js|css|html)$/.test(f.name) && !/^(test|offline)\//.test(f.name));
  assert.ok(sum(files.filter((f) => f.name.startsWith('offline/'))) <= 12 * 1024);
  assert.ok(sum(served) <= 415 * 1024, `${sum(served)} bytes`);
  assert.ok(sum(files.filter((f) => /^vendor\/(preact|uplot)\.(js|css)$/.test(f.name))) <= 85 * 1024);
});

test('every file says in its first line what it is, and is short', () => {
  for (const f of sources) {
    const lines = readFileSync(f.path, 'utf8').split('\n');
    assert.match(lines[f.name.endsWith('.html') ? 1 : 0], /^(\/\/|\/\*|<!--) .+[.:]( ?\*\/| ?-->)?$/, f.name);
    assert.ok(lines.length <= 300, `${f.name}: ${lines.length} lines`);
  }
});

test('no markup is made of strings, nothing is evaluated, nothing is a class or a default', () => {
  const never = [/\.innerHTML|\.outerHTML|insertAdjacentHTML|document\.write/, /\beval\(|new Function\(/, /export default/, /^class /m, /dangerouslySetInnerHTML/];
  for (const f of sources.filter((s) => !/^(test|vendor)\//.test(s.name) && s.name.endsWith('.js'))) {
    const text = readFileSync(f.path, 'utf8');
    for (const bad of never) assert.ok(!bad.test(text), `${f.name}: ${bad}`);
    assert.ok(text.includes('// @ts-check'), `${f.name} is not checked`);
    assert.ok(!/https?:\/\//.test(text), `${f.name} names an address`);
  }
});

test('vendored files are what VENDOR.md says', () => {
  const said = readFileSync(join(root, 'vendor/VENDOR.md'), 'utf8');
  for (const name of ['preact.js', 'uplot.js', 'uplot.css']) {
    const bytes = readFileSync(join(root, 'vendor', name));
    assert.ok(said.includes(`| ${name} | ${bytes.length} | ${createHash('sha256').update(bytes).digest('hex')} |`), name);
  }
});
