// How it looks and who can use it: themes, narrow screens, zoom, contrast modes, axe on every page.
import assert from 'node:assert/strict';
import { pages, ready, titleOf, until } from './harness.mjs';

const drawers = ['actor:a0', 'node:n2', 'device:n1/0', 'job:j9', 'process:p1', 'transfer:c1', 'span:s4.1350000000'];
const bg = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);

async function all(h, options, where) {
  const context = await h.fresh(options);
  const page = await h.open('small', '#/now', { context });
  for (const p of pages) {
    await h.go(page, `#/${p}${p === 'timeline' ? '?panel=sums' : p === 'cluster' ? '?links=1' : ''}`);
    await ready(page, titleOf(p));
    await page.waitForTimeout(250);
    await h.axe(page, `${where} ${p}`);
  }
  return page;
}

const narrow = { context_: { viewport: { width: 360, height: 740 }, hasTouch: true } };

/** Nothing of the page itself stands wider than the screen. */
const fits = (page) => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth && document.querySelector('.app').scrollWidth <= innerWidth);

export const scenarios = [
  { name: 'look: axe finds nothing on any page, dark', anywhere: true, run: async (h) => { await all(h, { context_: { colorScheme: 'dark' } }, 'dark'); } },
  { name: 'look: axe finds nothing on any page, light', anywhere: true, run: async (h) => { await all(h, { context_: { colorScheme: 'light' } }, 'light'); } },
  { name: 'look: axe finds nothing in any drawer or dialog', run: async (h) => {
    const page = await h.open('small', '#/actors');
    for (const sel of drawers) {
      await h.go(page, `#/actors?sel=${sel}`);
      await page.locator('aside.drawer h2').first().waitFor();
      await page.waitForTimeout(200);
      await h.axe(page, sel);
    }
    await page.keyboard.press('Control+k');
    await page.locator('.palette [role=option]').nth(5).waitFor();
    await h.axe(page, 'palette');
    await page.keyboard.press('Escape');
    await page.locator('dialog').waitFor({ state: 'detached' });
    await page.keyboard.press('?');
    await page.locator('dialog .keys').first().waitFor();
    await h.axe(page, 'help');
  } },
  { name: 'look: axe finds nothing in any state', run: async (h) => {
    for (const world of ['empty', 'partial', 'replay']) {
      const other = await h.open(world, '#/actors');
      await until('drawn', () => other.locator('.empty, [role=grid]').count());
      await h.axe(other, world);
    }
    const tree = await h.open('calm', '#/actors?tree=1');
    await ready(tree);
    await h.axe(tree, 'tree');
    const error = await h.open('error', '#/actors', { quiet: true });
    await error.locator('.failed').waitFor();
    await h.axe(error, 'error');
  } },
  { name: 'look: the theme follows the system, and the toggle overrides it', anywhere: true, run: async (h) => {
    const page = await h.open('small', '#/now', { context_: { colorScheme: 'dark' } });
    await ready(page);
    assert.equal(await bg(page), 'rgb(17, 20, 24)');
    await page.emulateMedia({ colorScheme: 'light' });
    assert.equal(await bg(page), 'rgb(255, 255, 255)');
    await page.getByRole('button', { name: /^Theme/ }).click();
    await page.getByRole('button', { name: /^Theme/ }).click();
    assert.equal(await bg(page), 'rgb(17, 20, 24)');
    await page.reload();
    await ready(page);
    assert.equal(await bg(page), 'rgb(17, 20, 24)');
  } },
  { name: 'look: forced colours keep states readable', run: async (h) => {
    const page = await h.open('small', '#/actors', { context_: { forcedColors: 'active', colorScheme: 'dark' } });
    await ready(page);
    const state = page.locator('[role=grid] .state').first();
    assert.equal(await state.locator('svg').count(), 1);
    assert.match(await state.innerText(), /Failed/);
    await h.axe(page, 'forced colours');
  } },
  { name: 'look: reduced motion moves nothing by itself', anywhere: true, run: async (h) => {
    const page = await h.open('small', '#/timeline', { context_: { reducedMotion: 'reduce' } });
    await ready(page, 'Timeline');
    const moving = await page.evaluate(() => document.getAnimations().filter((a) => a.playState === 'running' && a.effect?.getComputedTiming().duration > 0).length);
    assert.equal(moving, 0);
  } },
  { name: 'look: 360 pixels hold every page, and the drawer is a sheet', anywhere: true, run: async (h) => {
    const page = await h.open('small', '#/now', narrow);
    for (const p of pages) {
      await h.go(page, `#/${p}`);
      await ready(page, titleOf(p));
      assert.ok(await fits(page), `${p} is wider than the screen`);
    }
    await h.go(page, '#/actors?f=system:any');
    await ready(page);
    await page.locator('[role=grid] .body [role=row]').nth(1).tap();
    const sheet = page.locator('aside.drawer');
    await sheet.waitFor();
    const box = await sheet.boundingBox();
    assert.ok(box.x === 0 && Math.round(box.width) === 360 && box.y > 60, JSON.stringify(box));
    await h.axe(page, 'sheet');
    await page.getByRole('button', { name: 'Close details' }).click();
    await sheet.waitFor({ state: 'detached' });
  } },
  { name: 'look: the first column stays in sight on a narrow screen', run: async (h) => {
    const page = await h.open('small', '#/actors', narrow);
    await ready(page);
    const at = async () => (await page.locator('[role=grid] .body [role=row] .name').first().boundingBox()).x;
    const before = await at();
    await page.evaluate(() => { document.querySelector('.grid').scrollLeft = 400; });
    await page.waitForTimeout(100);
    assert.equal(await at(), before);
  } },
  { name: 'look: names of lanes are whole where there is room, cut at their end elsewhere, and their width is dragged', run: async (h) => {
    const page = await h.open('calm', '#/timeline');
    await page.locator('.gutter .lane', { hasText: 'rollout/worker-10' }).waitFor();
    const cut = () => page.locator('.gutter .lane .text').evaluateAll((all) => all.filter((e) => e.scrollWidth > e.clientWidth).length);
    assert.equal(await cut(), 0);
    const wide = async () => (await page.locator('.gutter').boundingBox()).width;
    const before = await wide();
    const grip = page.getByRole('separator', { name: 'Width of the names' });
    await grip.focus();
    for (let i = 0; i < 4; i += 1) await page.keyboard.press('ArrowLeft');
    await until('it is narrower', async () => (await wide()) < before - 50);
    await until('names are cut', async () => (await cut()) > 0);
    assert.ok((await page.locator('.gutter .lane').allInnerTexts()).every((t) => !t.startsWith('…')));
    await grip.dblclick();
    await until('as the names ask', async () => Math.abs((await wide()) - before) < 2);
    const small = await h.open('calm', '#/timeline', narrow);
    await small.locator('.gutter .lane', { hasText: 'trainer' }).waitFor();
    assert.ok(await fits(small));
  } },
  { name: 'look: a node that is down says what it was, without a meter', run: async (h) => {
    const page = await h.open('lost', '#/cluster?sel=node:n2');
    const row = page.locator('[role=grid] .body [role=row]', { hasText: 'Down' });
    await row.waitFor();
    assert.match(await row.innerText(), /was 97 %[^]*was 200 GiB/);
    assert.equal(await row.locator('.bar').count(), 0);
    assert.ok((await row.locator('.gpu .util').evaluateAll((all) => all.map((e) => e.getBoundingClientRect().width))).every((w) => w === 0));
    await page.locator('aside.drawer .title', { hasText: 'when it was last seen' }).waitFor();
    await h.axe(page, 'a node that is down');
  } },
  { name: 'look: labels of a heat map and of whole numbers stand apart', run: async (h) => {
    const page = await h.open('small', '#/runs?run=default/j5.1');
    await page.locator('.heat').waitFor();
    const boxes = await page.locator('.heat text.dim').evaluateAll((all) => all.map((e) => e.getBoundingClientRect()).map((b) => [b.left, b.right]));
    for (let i = 1; i < boxes.length; i += 1) assert.ok(boxes[i][0] >= boxes[i - 1][1], `label ${i}`);
    assert.match(await page.locator('.heat g g text').first().textContent(), /^\d+ %$/);
    await h.axe(page, 'a heat map');
    await h.go(page, '#/runs?run=default/j7.1');
    await page.locator('.histogram', { hasText: 'Staleness of what was trained on' }).locator('.middles').waitFor();
    const middle = (all) => all.map((e) => e.getBoundingClientRect()).map((b) => Math.round(b.left + b.width / 2));
    const figure = page.locator('.histogram').first();
    assert.deepEqual(await figure.locator('.middles span:not(.unit)').evaluateAll(middle), await figure.locator('rect').evaluateAll(middle));
    assert.equal(await figure.locator('figcaption span').first().evaluate((e) => e.scrollWidth > e.clientWidth), false);
    assert.match(await page.locator('.figures dt').first().innerText(), /reward/);
  } },
  { name: 'look: 200 % zoom keeps everything in reach', anywhere: true, run: async (h) => {
    const page = await h.open('small', '#/now', { context_: { viewport: { width: 640, height: 400 }, deviceScaleFactor: 2 } });
    for (const p of pages) {
      await h.go(page, `#/${p}`);
      await ready(page, titleOf(p));
      assert.ok(await fits(page), p);
      assert.ok(await page.locator('.honest').isVisible());
    }
  } },
  { name: 'look: a live region speaks of problems', run: async (h) => {
    const page = await h.open('small', '#/cluster');
    await ready(page);
    await page.locator('[aria-live=polite]', { hasText: /2 errors, 4 warnings/ }).waitFor({ state: 'attached' });
  } },
];
