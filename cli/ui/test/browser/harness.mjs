// A browser with pages that are watched: no error on the console, no request elsewhere, no dialog.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import assert from 'node:assert/strict';

const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
export const pages = ['now', 'problems', 'cluster', 'actors', 'jobs', 'runs', 'timeline', 'transfers', 'events'];

/** @param {{ require: any, chromium: string, url: string, key: string | null }} given */
export async function harness({ require, chromium: executablePath, url, key }) {
  const { chromium } = require('playwright-core');
  const axeSource = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
  const profile = mkdtempSync(join(tmpdir(), 'odeon-ui-'));
  const tidy = () => rmSync(profile, { recursive: true, force: true });
  process.once('exit', tidy);
  const browser = await chromium.launch({ executablePath, args, env: { ...process.env, HOME: profile, XDG_CONFIG_HOME: profile } });
  let contexts = [];
  let wrong = [];

  /** Opens a page of a world; with a daemon of its own, of that daemon. */
  async function open(world, hash = '#/now', options = {}) {
    const { context = await fresh(options), quiet = false, login = true } = options;
    const page = await context.newPage();
    watch(page, quiet);
    await page.goto(login ? `${url}/#k=${key ?? world}` : `${url}/${hash}`);
    if (login) {
      await page.waitForFunction(() => !location.hash.includes('k=') && document.querySelector('.app') !== null);
      await go(page, hash);
    }
    return page;
  }

  async function fresh(options = {}) {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options.context_ });
    context.setDefaultTimeout(15_000);
    contexts.push(context);
    return context;
  }

  /** Opens what is served elsewhere, with its key, or a file, which asks nobody anything. */
  async function openAt(link, hash, options = {}) {
    const context = options.context ?? await fresh(options);
    const page = await context.newPage();
    watch(page, options.quiet ?? false, link.startsWith('file:') ? link : new URL(link).origin);
    await page.goto(link);
    await page.waitForFunction(() => !location.hash.includes('k=') && document.querySelector('.app') !== null);
    await go(page, hash);
    return page;
  }

  function watch(page, quiet, home = url) {
    const note = (text) => { if (!quiet) wrong.push(text); };
    page.on('console', (m) => { if (m.type() === 'error') note(`console: ${m.text()}`); });
    page.on('pageerror', (e) => wrong.push(`error: ${e.stack}`));
    page.on('dialog', (d) => { wrong.push(`dialog: ${d.message()}`); d.dismiss(); });
    page.on('request', (r) => { if (!r.url().startsWith(home) && !/^(data|blob):/.test(r.url())) wrong.push(`elsewhere: ${r.url()}`); });
  }

  const go = (page, hash) => page.evaluate((h) => { location.hash = h; }, hash);

  async function axe(page, where) {
    const result = await page.evaluate(`${axeSource};axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] })`);
    const said = result.violations.map((v) => `${v.id} (${v.nodes.length}): ${v.nodes[0].target} ${v.nodes[0].failureSummary.split('\n')[1] ?? ''}`);
    assert.deepEqual(said, [], where);
  }

  const control = (input) => fetch(`${url}/mock/control`, { method: 'POST', body: JSON.stringify(input) });
  const streams = async (world) => (await (await fetch(`${url}/mock/stats?world=${world}`)).json()).streams;

  /** What went wrong on any page since the last time. */
  function settle() {
    const was = wrong;
    wrong = [];
    assert.deepEqual(was, []);
  }

  /** Closes all pages, before what they show ends. */
  async function leave() {
    for (const c of contexts) await c.close().catch(() => {});
    contexts = [];
  }

  async function clean() {
    await leave();
    wrong = [];
  }

  async function close() {
    await browser.close();
    tidy();
  }
  return { open, openAt, fresh, go, axe, control, streams, settle, leave, clean, close, url, key };
}

/** The page shows data: its heading stands and no skeleton is left. */
export async function ready(page, title) {
  await page.locator('h1', title ? { hasText: title } : {}).first().waitFor();
  await page.waitForFunction(() => !document.querySelector('main .skeleton') && document.querySelector('.honest b') !== null);
}

/** Waits until it holds; says what it was otherwise. */
export async function until(what, f, ms = 10_000) {
  const end = Date.now() + ms;
  for (;;) {
    const got = await f();
    if (got) return got;
    if (Date.now() > end) throw new Error(`never: ${what}`);
    await new Promise((r) => setTimeout(r, 60));
  }
}

export const titleOf = (p) => p[0].toUpperCase() + p.slice(1);
