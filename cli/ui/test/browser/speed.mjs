// Budgets: frames while much changes, and how much of the tree is drawn.
import assert from 'node:assert/strict';
import { ready, until } from './harness.mjs';

/** Times between frames while something is done, in milliseconds. */
const frames = (page, ms) => page.evaluate((length) => new Promise((done) => {
  const all = [];
  const end = performance.now() + length;
  let last = performance.now();
  const next = (t) => {
    all.push(t - last);
    last = t;
    if (t < end) requestAnimationFrame(next);
    else done(all.slice(1).sort((a, b) => a - b));
  };
  requestAnimationFrame(next);
}), ms);

const at = (all, share) => all[Math.min(all.length - 1, Math.floor(all.length * share))];
const said = (all) => `frames p50 ${at(all, 0.5).toFixed(0)} ms, p95 ${at(all, 0.95).toFixed(0)} ms`;

/** The aim: a frame in this time, 95 times of 100. */
const AIM = 50;
/** What fails a test: more than noise of a busy machine makes of that. */
const LIMIT = Number(process.env.ODEON_FRAME_MS ?? AIM);

/** The machine may be busy with other things: the best of three counts. */
async function best(page, drive) {
  let all = [];
  for (let i = 0; i < 3; i += 1) {
    const seen = frames(page, 3000);
    await drive();
    const now = await seen;
    if (!all.length || at(now, 0.95) < at(all, 0.95)) all = now;
    if (at(all, 0.95) < AIM) break;
  }
  assert.ok(at(all, 0.95) < LIMIT, said(all));
  return said(all);
}

export const scenarios = [
  { name: 'speed: 10,000 actors, 5,000 changes a second, scrolled and sorted', alone: true, run: async (h) => {
    const page = await h.open('big', '#/actors?sort=-rate');
    await ready(page);
    const rows = Number(await page.locator('[role=grid]').getAttribute('aria-rowcount'));
    assert.ok(rows > 9990, String(rows));
    const nodes = await page.evaluate(() => document.querySelectorAll('*').length);
    assert.ok(nodes < 2500, `${nodes} elements`);
    const result = await best(page, async () => {
      for (let i = 0; i < 14; i += 1) {
        await page.evaluate((n) => { document.querySelector('.grid').scrollTop = n * 3100; }, i);
        await page.waitForTimeout(180);
      }
    });
    return `${result}, ${nodes} elements`;
  } },
  { name: 'speed: 200,000 spans on 200 lanes, zoomed and moved', alone: true, run: async (h) => {
    const page = await h.open('spans', '#/timeline?w=100000');
    await page.locator('.gutter .lane').nth(3).waitFor();
    const open = await page.evaluate(() => [...document.querySelectorAll('.gutter .lane')].length);
    assert.ok(open > 3);
    await h.go(page, '#/timeline?w=100000&open=n:n1,n:n2,n:n3,n:n4,p:p1,p:p2,p:p3,p:p4');
    await page.reload();
    await until('all lanes', async () => /20\d lanes/.test(await page.locator('.corner').innerText()));
    return best(page, async () => {
      for (const k of ['a', 'w', 'w', 'd', 'w', 'a', 's', 's', 'w', 'w', 'd', 's']) {
        await page.keyboard.press(k);
        await page.waitForTimeout(200);
      }
    });
  } },
  { name: 'speed: a live timeline follows without stutter', alone: true, run: async (h) => {
    const page = await h.open('small', '#/timeline');
    await page.locator('.gutter .lane').nth(3).waitFor();
    return best(page, async () => { await page.waitForTimeout(2500); });
  } },
];
