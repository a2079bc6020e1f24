// Rebuilds the vendored files from their packages, in a folder outside the repository, and writes VENDOR.md with their hashes.
// node cli/ui/vendor/update.mjs

import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));

const packages = [
  { name: 'preact', version: '11.2.0', licence: 'MIT', file: 'preact.js' },
  { name: 'htm', version: '3.1.1', licence: 'Apache-2.0', file: 'preact.js' },
  { name: '@preact/signals', version: '2.11.4', licence: 'MIT', file: 'preact.js' },
  { name: '@preact/signals-core', version: '1.14.5', licence: 'MIT', file: 'preact.js' },
  { name: 'uplot', version: '1.6.32', licence: 'MIT', file: 'uplot.js, uplot.css' },
];
const esbuild = '0.28.2';

const entries = {
  'preact.js': `
    import { h } from 'preact';
    import htm from 'htm';
    export { h, render, Fragment } from 'preact';
    export { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback } from 'preact/hooks';
    export { signal, computed, effect, batch, untracked } from '@preact/signals';
    export const html = htm.bind(h);`,
  'uplot.js': `export { default as uPlot } from 'uplot';`,
};

const banners = {
  'preact.js': '// Preact, htm and signals in one module; see VENDOR.md.',
  'uplot.js': '// uPlot as one module; see VENDOR.md.',
};

function bundle(work, name) {
  writeFileSync(join(work, `entry-${name}`), entries[name]);
  execFileSync(join(work, 'node_modules/.bin/esbuild'), [
    `entry-${name}`, '--bundle', '--format=esm', '--minify', '--target=es2022', '--legal-comments=none',
    `--banner:js=${banners[name]}`, `--outfile=${join(here, name)}`,
  ], { cwd: work, stdio: 'inherit' });
}

function licences(work) {
  const text = packages.map((p) => {
    const folder = join(work, 'node_modules', p.name);
    return `${p.name} ${p.version} (${p.licence})\n\n${readFileSync(join(folder, 'LICENSE'), 'utf8').trim()}\n`;
  });
  writeFileSync(join(here, 'LICENSES'), text.join(`\n${'-'.repeat(80)}\n\n`));
}

function record() {
  const files = ['preact.js', 'uplot.js', 'uplot.css'].map((name) => {
    const bytes = readFileSync(join(here, name));
    return `| ${name} | ${bytes.length} | ${createHash('sha256').update(bytes).digest('hex')} |`;
  });
  const rows = packages.map((p) => `| ${p.name} | ${p.version} | ${p.licence} | ${p.file} |`);
  writeFileSync(join(here, 'VENDOR.md'), [
    '# What is vendored', '',
    `\`node cli/ui/vendor/update.mjs\` makes these files again with esbuild ${esbuild}; nothing here is edited by hand.`, '',
    '| package | version | licence | in |', '| --- | --- | --- | --- |', ...rows, '',
    '| file | bytes | SHA-256 |', '| --- | --- | --- |', ...files, '',
  ].join('\n'));
}

const work = mkdtempSync(join(tmpdir(), 'odeon-vendor-'));
try {
  writeFileSync(join(work, 'package.json'), '{"private":true}');
  const wanted = packages.map((p) => `${p.name}@${p.version}`);
  execFileSync('npm', ['install', '--no-audit', '--no-fund', '--ignore-scripts', ...wanted, `esbuild@${esbuild}`], { cwd: work, stdio: 'inherit' });
  for (const name of Object.keys(entries)) bundle(work, name);
  writeFileSync(join(here, 'uplot.css'), `/* uPlot's styles; see VENDOR.md. */\n${readFileSync(join(work, 'node_modules/uplot/dist/uPlot.min.css'), 'utf8')}\n`);
  licences(work);
  record();
} finally {
  rmSync(work, { recursive: true, force: true });
}
