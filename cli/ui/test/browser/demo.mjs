// Real runs, recorded: each page shows its key fact, the bar steers, and a page that is one file shows the same.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { ran, shown } from '../demo.mjs';
import { pages, ready, titleOf, until } from './harness.mjs';

const folder = join(dirname(fileURLToPath(import.meta.url)), '../../../demo');

/** Where a recording shows what it is about: a share of it, a page, and the words or marks that stand there. */
const facts = {
  deadlock: { share: 0.85, page: 'now', words: /nobody can wake them/ },
  oom: { share: 0.97, page: 'events', words: /out of memory/i },
  'lost-node': { share: 0.97, page: 'cluster', words: /node-3[^]*\bDown\b[^]*\bwas\b/ },
  broadcast: { share: 1, page: 'transfers', words: /Slow: .*reader-3/ },
  crowd: { share: 0.9, page: 'actors', words: /10,000/ },
  rl: { share: 1, page: 'runs', words: /reward/i },
};

async function fact(page, name) {
  const { words } = facts[name];
  await until(`${name}: ${words}`, async () => words.test(await page.locator('body').innerText()), 15_000);
}

const demo = (name) => ({ name: `demo: ${name} is shown on every page`, command: true, run: async (h) => {
  const it = await shown(['demo', name]);
  try {
    const { share, page: where } = facts[name];
    const bar = await it.steer({ paused: true });
    await it.steer({ at: bar.from + (bar.to - bar.from) * share });
    const page = await h.openAt(it.link, '#/now', { context_: { colorScheme: name.length % 2 ? 'dark' : 'light' } });
    for (const p of pages.filter((x) => x !== 'jobs' || name === 'lost-node')) {
      await h.go(page, `#/${p}`);
      await ready(page, titleOf(p));
      await page.locator('.replay', { hasText: name }).waitFor();
      await page.locator('.pulse.is-recorded').waitFor();
      await h.axe(page, `${name} ${p}`);
    }
    await h.go(page, `#/${where}`);
    await ready(page, titleOf(where));
    await fact(page, name);
  } finally {
    await h.leave();
    await it.stop();
  }
} });

const frameMs = Number(process.env.ODEON_FRAME_MS ?? 250);

/** The longest frames while the list is scrolled. */
const frames = (page) => page.evaluate(() => new Promise((done) => {
  const body = document.querySelector('[role=grid] .body')?.parentElement ?? document.querySelector('[role=grid]');
  const took = [];
  let last = performance.now();
  const step = (now) => {
    took.push(now - last);
    last = now;
    for (let e = body; e; e = e.parentElement) e.scrollTop += 120;
    if (took.length < 60) requestAnimationFrame(step);
    else done(took.slice(5).sort((a, b) => a - b));
  };
  requestAnimationFrame(step);
}));

export const scenarios = [
  ...Object.keys(facts).map(demo),
  { name: 'demo: ten thousand actors scroll while they are replayed', command: true, alone: true, run: async (h) => {
    const it = await shown(['demo', 'crowd', '--speed', '1']);
    try {
      const bar = await it.steer({ paused: false });
      await it.steer({ at: bar.from + 3_000 });
      const page = await h.openAt(it.link, '#/actors?sort=-rate');
      await ready(page);
      await until('all are there', async () => Number(await page.locator('[role=grid]').getAttribute('aria-rowcount')) > 9_999);
      const took = await frames(page);
      const p95 = took[Math.floor(took.length * 0.95)];
      assert.ok(p95 <= frameMs, `95 of 100 frames within ${p95.toFixed(0)} ms, of ${frameMs}`);
      return `95 of 100 frames within ${p95.toFixed(0)} ms`;
    } finally {
      await h.leave();
      await it.stop();
    }
  } },
  { name: 'demo: the bar plays, holds, goes back and forth, by keys too', command: true, run: async (h) => {
    const it = await shown(['replay', join(folder, 'deadlock.odr')]);
    try {
      const page = await h.openAt(it.link, '#/now');
      await ready(page, 'Now');
      const place = page.getByLabel('Place in the recording');
      const at = async () => Number(await place.inputValue());
      const first = await at();
      await until('it plays', async () => (await at()) > first);
      await page.getByRole('button', { name: 'Hold the recording' }).focus();
      await page.keyboard.press('Enter');
      await page.getByRole('button', { name: 'Play the recording' }).waitFor();
      await place.focus();
      await page.keyboard.press('End');
      await fact(page, 'deadlock');
      await page.keyboard.press('Home');
      await until('nothing is wrong yet', async () => !facts.deadlock.words.test(await page.locator('main').innerText()));
      assert.equal(await page.locator('.banner', { hasText: 'restarted' }).count(), 0);
      await page.getByRole('button', { name: '16x' }).click();
      await page.getByRole('button', { name: 'Play the recording' }).click();
      await fact(page, 'deadlock');
    } finally {
      await h.leave();
      await it.stop();
    }
  } },
  { name: 'demo: a page that is one file shows the same from a disk, and asks nobody', command: true, run: async (h) => {
    const scratch = mkdtempSync(join(tmpdir(), 'odeon-page-'));
    try {
      for (const name of ['deadlock', 'rl', 'broadcast']) {
        const file = join(scratch, `${name}.html`);
        ran(['replay', join(folder, `${name}.odr`), '--html', file]);
        const link = pathToFileURL(file).href;
        const context = await h.fresh({ context_: { offline: true } });
        const asked = [];
        context.on('request', (r) => { if (!/^(blob|data):/.test(r.url()) && r.url().split('#')[0] !== link) asked.push(r.url()); });
        const page = await h.openAt(link, '#/now', { context });
        for (const p of pages.filter((x) => x !== 'jobs')) {
          await h.go(page, `#/${p}`);
          await ready(page, titleOf(p));
        }
        await page.locator('.holds', { hasText: 'This file holds' }).waitFor();
        await h.go(page, '#/now?range=6h');
        await page.locator('.series').nth(3).waitFor();
        assert.equal(await page.getByRole('group', { name: 'Look back' }).count(), 0);
        await page.locator('.pulse.is-recorded').waitFor();
        await h.go(page, '#/timeline');
        await page.locator('.gutter .lane').nth(2).waitFor();
        await h.go(page, `#/${facts[name].page}`);
        await ready(page, titleOf(facts[name].page));
        await fact(page, name);
        await h.axe(page, `${name} as a file`);
        assert.deepEqual(asked, []);
      }
    } finally {
      rmSync(scratch, { recursive: true, force: true });
    }
  } },
];
