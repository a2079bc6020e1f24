// Runs all tests of the page: the pure ones, then those in a browser. One line a scenario; leaves no process behind.
// node cli/ui/test/run.mjs [part of a name]
// ODEON_NODE_MODULES: a folder with playwright-core and axe-core. ODEON_CHROMIUM: the browser, /usr/bin/chromium unless said.
// ODEON_BIN: the command, for scenarios that look at what it recorded and at what it runs; without it they are skipped.
// ODEON_UI_URL and ODEON_UI_KEY: a running daemon; then scenarios that need a scripted world are skipped.

import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { harness } from './browser/harness.mjs';
import { startMock } from './mock.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const wanted = process.argv[2] ?? '';
const chromium = process.env.ODEON_CHROMIUM ?? '/usr/bin/chromium';
const limitMs = 90_000;
let failed = 0;

const line = (mark, name, more = '') => process.stdout.write(`${mark.padEnd(7)} ${name}${more ? `  ${more}` : ''}\n`);

function pure() {
  const files = readdirSync(here).filter((f) => f.endsWith('.test.mjs')).map((f) => join(here, f));
  const { status, stdout, stderr } = spawnSync(process.execPath, ['--test', '--test-reporter=tap', ...files], { encoding: 'utf8', timeout: limitMs });
  for (const [, not, name] of stdout.matchAll(/^(not )?ok \d+ - (.*)$/gm)) line(not ? 'FAILED' : 'ok', name);
  if (status !== 0) {
    failed += 1;
    process.stderr.write(`${stdout}\n${stderr}\n`);
  }
}

/** Why there is no browser, or nothing. */
function missing() {
  if (!existsSync(chromium)) return 'no chromium';
  const modules = process.env.ODEON_NODE_MODULES;
  if (!modules) return 'ODEON_NODE_MODULES is not set';
  return ['playwright-core', 'axe-core'].find((m) => !existsSync(join(modules, m)))?.concat(' is missing') ?? null;
}

async function one(h, s) {
  const began = Date.now();
  const most = s.limitMs ?? limitMs;
  let timer;
  try {
    const late = new Promise((_, no) => { timer = setTimeout(() => no(new Error(`not done after ${most / 1000} s`)), most); });
    const said = await Promise.race([s.run(h), late]);
    h.settle();
    line('ok', s.name, `${said ? `${said}, ` : ''}${((Date.now() - began) / 1000).toFixed(1)} s`);
  } catch (error) {
    failed += 1;
    line('FAILED', s.name, String(error?.stack ?? error).split('\n').slice(0, 12).join(' | '));
  } finally {
    clearTimeout(timer);
    await h.clean();
  }
}

/** Browsers that work at the same time; most of a scenario is waiting. */
const lanesMax = 2;

/** A browser, with a world of its own unless a daemon is given. */
async function lane(real) {
  const mock = real ? null : await startMock();
  const require = createRequire(join(process.env.ODEON_NODE_MODULES, 'x.js'));
  const h = await harness({ require, chromium, url: real ?? mock.url, key: process.env.ODEON_UI_KEY ?? null });
  const close = async () => {
    await h.close();
    await mock?.close();
  };
  return { h, close };
}

/** Runs scenarios one after the other, until the queue is empty. */
async function drain({ h }, queue, real) {
  for (let s = queue.shift(); s; s = queue.shift()) {
    if (s.command && !process.env.ODEON_BIN) line('skipped: ODEON_BIN names no command', s.name);
    else if (real && !s.anywhere) line('skipped: needs a scripted world', s.name);
    else await one(h, s);
  }
}

async function browser() {
  const parts = readdirSync(join(here, 'browser')).filter((f) => f.endsWith('.mjs') && f !== 'harness.mjs').sort();
  const all = (await Promise.all(parts.map((f) => import(`./browser/${f}`)))).flatMap((m) => m.scenarios).filter((s) => s.name.includes(wanted));
  const why = missing();
  if (why) return all.forEach((s) => line(`skipped: ${why}`, s.name));
  const real = process.env.ODEON_UI_URL;
  // Those that measure have the machine to themselves.
  const [measured, beside] = [all.filter((s) => s.alone), all.filter((s) => !s.alone)];
  const lanes = await Promise.all(Array.from({ length: Math.min(lanesMax, beside.length || 1) }, () => lane(real)));
  try {
    await Promise.all(lanes.map((each) => drain(each, beside, real)));
    await Promise.all(lanes.splice(1).map((each) => each.close()));
    await drain(lanes[0], measured, real);
  } finally {
    await Promise.all(lanes.map((each) => each.close()));
  }
}

if (!wanted) pure();
await browser();
process.exitCode = failed ? 1 : 0;
