// Time that has gone by: totals over hours, charts of one point, spans that are forgotten.
import assert from 'node:assert/strict';
import { ready, until } from './harness.mjs';

const narrow = { context_: { viewport: { width: 360, height: 740 }, hasTouch: true } };
const fits = (page) => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth && document.querySelector('.app').scrollWidth <= innerWidth);
const hash = (page) => page.evaluate(() => location.hash);
/** How many pixels of a canvas have exactly a colour of the page. */
const painted = (canvas, name) => canvas.evaluate((el, of) => {
  const probe = document.body.appendChild(document.createElement('span'));
  probe.style.color = `var(--${of})`;
  const [r, g, b] = getComputedStyle(probe).color.match(/\d+/g).map(Number);
  probe.remove();
  const { data } = el.getContext('2d').getImageData(0, 0, el.width, el.height);
  let n = 0;
  for (let i = 0; i < data.length; i += 4) if (data[i] === r && data[i + 1] === g && data[i + 2] === b) n += 1;
  return n;
}, name);

export const scenarios = [
  { name: 'history: totals over hours, chosen by keys, held by the address', run: async (h) => {
    const page = await h.open('small', '#/now');
    await ready(page, 'Now');
    const choice = page.getByRole('group', { name: 'Look back' });
    assert.equal(await page.locator('.series').count(), 4);
    await choice.getByRole('button', { name: '6 h' }).focus();
    await page.keyboard.press('Enter');
    await page.locator('.history .curve canvas').nth(3).waitFor();
    assert.match(await hash(page), /range=6h/);
    assert.equal(await page.locator('.series').count(), 0);
    const first = page.locator('.history .curve').first();
    assert.match(await first.getAttribute('aria-label'), /^messages handled: [\d,.]+\/s at \d\d:\d\d:\d\d, from [\d,.]+\/s to [\d,.]+\/s$/);
    assert.match(await page.locator('.history .curve').nth(3).locator('p').innerText(), /^from [\d.]+ to [\d.]+ messages$/);
    const line = await painted(first.locator('canvas'), 'accent');
    assert.ok(line > 5, `a line of ${line} pixels`);
    await first.locator('.u-over').hover();
    await first.locator('p', { hasText: /^\d\d:\d\d:\d\d: from/ }).waitFor();
    await h.axe(page, 'totals over hours');
    await page.reload();
    await page.locator('.history .curve canvas').nth(3).waitFor();
    await choice.getByRole('button', { name: '6 h', pressed: true }).click();
    await page.locator('.series').nth(3).waitFor();
    assert.ok(!/range/.test(await hash(page)));
    const small = await h.open('small', '#/now?range=1h', narrow);
    await small.locator('.history .curve canvas').nth(3).waitFor();
    assert.ok(await fits(small));
  } },
  { name: 'history: it loads, fails, is tried again, stays while the connection is gone, says when there is none', run: async (h) => {
    const page = await h.open('small', '#/now', { quiet: true });
    await ready(page, 'Now');
    const all = '**/inspect/series?*';
    await page.route(all, () => {});
    await h.go(page, '#/now?range=1h');
    await page.locator('.history .skeleton').waitFor({ state: 'attached' });
    await page.unroute(all);
    await page.route(all, (r) => r.fulfill({ status: 500, body: '{"kind":"internal","why":"The sampler panicked."}' }));
    await h.go(page, '#/now?range=5m');
    await page.locator('.history .failed', { hasText: 'The sampler panicked.' }).waitFor();
    await h.axe(page, 'a history that failed');
    // The page also asks again by itself: an answer before the button is pressed would take the button away.
    await page.getByRole('button', { name: 'Retry' }).click();
    await page.unroute(all);
    await page.locator('.history .curve canvas').nth(3).waitFor();
    let gone = 0;
    await page.route(all, (r) => { gone += 1; return r.abort(); });
    await until('it was asked for again', () => gone > 3);
    await page.waitForTimeout(200);
    assert.equal(await page.locator('.history .curve').count(), 4);
    await page.unroute(all);
    await page.route(all, (r) => r.fulfill({ json: { data: { name: 'messages', unit: '/s', points: [] } } }));
    await h.go(page, '#/now?range=6h');
    await page.locator('.history', { hasText: 'Nothing was measured in this time.' }).waitFor();
  } },
  { name: 'history: one point is a dot, in small lines and in charts', run: async (h) => {
    const page = await h.open('worn', '#/now');
    await page.locator('.series .one').nth(3).waitFor({ state: 'attached' });
    assert.match(await page.locator('.series').first().innerText(), /measured once so far/);
    await h.go(page, '#/runs');
    const chart = page.locator('.curve', { hasText: 'Policy loss' }).locator('canvas');
    await chart.waitFor();
    await until('a dot', async () => (await painted(chart, 'accent')) > 10);
  } },
  { name: 'history: where spans are forgotten is drawn, and said in words', run: async (h) => {
    const page = await h.open('worn', '#/timeline?panel=sums');
    await ready(page, 'Timeline');
    const said = /spans are kept since \d\d:\d\d:\d\d, 1,234,567 older ones are forgotten/;
    await page.locator('.honest', { hasText: /kept since \d\d:\d\d:\d\d/ }).waitFor();
    await page.locator('.panel .note', { hasText: said }).waitFor();
    await page.locator('.panel [role=grid] .name').first().waitFor();
    const canvas = page.locator('.hold canvas');
    assert.match(await canvas.getAttribute('aria-label'), said);
    await h.axe(page, 'forgotten spans');
    await h.go(page, '#/timeline?panel=spans');
    await page.locator('.panel .note', { hasText: said }).waitFor();
    const at = Date.now();
    await h.go(page, `#/timeline?panel=spans&from=${at - 6000}&to=${at - 3000}`);
    await until('nothing of this is forgotten', async () => !said.test(await page.locator('main').innerText()));
    assert.ok(!said.test(await canvas.getAttribute('aria-label')));
    await h.go(page, `#/timeline?from=${at - 120_000}&to=${at - 90_000}&f=nobody-is-called-that`);
    await page.getByRole('heading', { name: 'No lane matches' }).waitFor();
    const calm = await h.open('calm', '#/timeline?panel=sums');
    await calm.locator('.panel [role=grid] .name').first().waitFor();
    assert.ok(!/kept since/.test(await calm.locator('body').innerText()));
    const small = await h.open('worn', '#/timeline', narrow);
    await small.locator('.honest', { hasText: 'kept since' }).waitFor();
    assert.ok(await fits(small));
  } },
  { name: 'history: how busy a lane is stands where it is pointed at', run: async (h) => {
    const page = await h.open('small', '#/timeline');
    const lane = page.locator('.gutter .lane.node').first();
    await lane.waitFor();
    const box = await lane.boundingBox();
    await page.mouse.move(box.x + box.width + 300, box.y + box.height / 2);
    await page.locator('.tip', { hasText: /at work/ }).waitFor();
  } },
];
