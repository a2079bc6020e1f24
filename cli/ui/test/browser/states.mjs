// Every page in each of the five states.
import assert from 'node:assert/strict';
import { pages, ready, titleOf, until } from './harness.mjs';

const each = (name, run) => ({ name: `states: ${name}`, run: async (h) => {
  for (const p of pages) await run(h, p);
} });

export const scenarios = [
  { name: 'states: every page shows its data', anywhere: true, run: async (h) => {
    const page = await h.open('small');
    for (const p of pages) {
      await h.go(page, `#/${p}`);
      await ready(page, titleOf(p));
      assert.equal(await page.locator('main .failed').count(), 0, p);
      assert.match(await page.locator('.honest').innerText(), /shown .* of .*dropped.*clock error.*as of/s, p);
    }
  } },
  each('loading is a skeleton, after a moment', async (h, p) => {
    const page = await h.open('slow', `#/${p}`);
    await page.locator('main .skeleton').first().waitFor({ state: 'attached' });
    await until('the skeleton appears', () => page.evaluate(() => getComputedStyle(document.querySelector('main .skeleton')).opacity === '1'));
    await page.context().close();
  }),
  each('empty says why and names a command', async (h, p) => {
    const page = await h.open('empty', `#/${p}`);
    await page.locator('main .empty code').first().waitFor();
    assert.match(await page.locator('main .empty').innerText(), /odeon (run|up|submit)/);
    await page.context().close();
  }),
  each('partial names who did not answer', async (h, p) => {
    const page = await h.open('partial', `#/${p}`);
    await ready(page);
    await page.locator('.banner', { hasText: /n2 did not answer for .*showing it as of/ }).waitFor();
    assert.match(await page.locator('.honest').innerText(), /1 not answering/);
    await page.context().close();
  }),
  { name: 'states: stale is an amber header, and values stay', run: async (h) => {
    const context = await h.fresh();
    for (const p of pages) {
      const page = await h.open('calm', `#/${p}`, { context, quiet: true });
      await ready(page);
      await h.control({ refuse: true, drop: true, world: 'calm' });
      if (p === 'timeline') await page.route('**/timeline?*', (r) => r.abort());
      await page.locator('.top.amber').waitFor();
      await page.locator('.pulse', { hasText: /disconnected \d+ s, retrying in \d+ s/ }).waitFor();
      assert.ok((await page.locator('main').innerText()).length > 40, p);
      await h.control({ refuse: false });
      if (p === 'timeline') await page.unroute('**/timeline?*');
      await page.locator('.pulse.is-live').waitFor();
      await page.close();
    }
  } },
  each('an error shows its kind, its sentence, its hint, Retry', async (h, p) => {
    const page = await h.open('error', `#/${p}`, { quiet: true });
    const box = page.locator('main .failed');
    await box.waitFor();
    const text = await box.innerText();
    assert.match(text, /internal/);
    assert.match(text, /panicked/);
    assert.match(text, /odeon logs/);
    assert.match(text, /request r-4711/);
    await page.locator('nav a', { hasText: 'Cluster' }).waitFor();
    await box.getByRole('button', { name: 'Retry' }).click();
    await page.context().close();
  }),
  { name: 'states: a filter that nothing matches can be cleared, a wrong one says what is wrong', run: async (h) => {
    const page = await h.open('small', '#/actors?f=nobody-is-called-that');
    await page.getByText('No actor matches').waitFor();
    await page.getByRole('button', { name: 'Clear the filter' }).click();
    await page.locator('[role=grid] [role=row] .name').first().waitFor();
    await page.locator('main input[type=search]').fill('mailbox>many');
    await page.locator('.filter [role=alert]', { hasText: 'number' }).waitFor();
  } },
  { name: 'states: a filter that the server refuses is told beside its box, and the rows stay', run: async (h) => {
    const page = await h.open('small', '#/actors?f=node:n2', { quiet: true });
    await ready(page);
    const rows = () => page.locator('[role=grid] .body [role=row]').count();
    const box = page.locator('main input[type=search]');
    const help = page.locator('.filter.wrong [role=alert]');
    for (const [text, why] of [['bogus:1', 'keys are state:'], ['state:nope', 'no state is called nope: starting, idle']]) {
      await box.fill(text);
      await help.filter({ hasText: why }).waitFor();
      await page.locator('.pulse.is-live').waitFor();
      assert.ok((await rows()) > 5, text);
      assert.match(await page.locator('.toolbar .note').innerText(), /^29\d$/);
      assert.equal(await page.locator('main .failed').count() + (await page.locator('.top.amber').count()), 0);
      const [over, under] = [await help.boundingBox(), await page.locator('[role=grid]').boundingBox()];
      assert.ok(over.y + over.height <= under.y, 'it lies over the rows');
    }
    await h.axe(page, 'a refused filter');
    await box.fill('node:n1');
    await help.waitFor({ state: 'detached' });
    const link = await h.open('small', '#/actors?f=bogus:2', { quiet: true });
    await link.locator('.filter.wrong [role=alert]', { hasText: 'bogus:2' }).waitFor();
    await link.locator('[role=grid] [role=row] .name').first().waitFor();
  } },
  { name: 'states: the footer tells of the page above it, and of nothing before that has come', run: async (h) => {
    const page = await h.open('small', '#/actors', { quiet: true });
    await ready(page);
    assert.match(await page.locator('.honest').innerText(), /of 1,187 actors/);
    await page.route('**/inspect/stream?view=jobs*', (r) => r.abort());
    await h.go(page, '#/jobs');
    await page.locator('.honest', { hasText: 'nothing received yet' }).waitFor();
    await page.unroute('**/inspect/stream?view=jobs*');
    await page.locator('.honest', { hasText: 'shown 5 of 5 jobs' }).waitFor();
    await h.go(page, '#/timeline');
    await ready(page, 'Timeline');
    assert.match(await page.locator('.honest').innerText(), /spans\s+dropped/);
  } },
  { name: 'states: pages that were open stay readable without a connection, others say that it broke', run: async (h) => {
    const page = await h.open('calm', '#/actors', { quiet: true });
    await ready(page);
    await h.go(page, '#/events');
    await ready(page, 'Events');
    await page.route('**/inspect/stream*', (r) => r.abort());
    await h.control({ drop: true, world: 'calm' });
    await page.locator('.top.amber').waitFor();
    await h.go(page, '#/actors');
    await page.locator('[role=grid] [role=row] .name').first().waitFor();
    assert.equal(await page.locator('.app.is-stale').count(), 1);
    await h.go(page, '#/jobs');
    await page.locator('main .failed', { hasText: 'disconnected' }).waitFor();
    await page.unroute('**/inspect/stream*');
    await page.locator('.pulse.is-live').waitFor();
    await page.locator('[role=grid]').waitFor();
  } },
  { name: 'states: an address that names no page says so', anywhere: true, run: async (h) => {
    const page = await h.open('small', '#/nowhere');
    await ready(page, 'Now');
    await page.locator('.banner', { hasText: 'No page is called nowhere; this is Now.' }).getByRole('button', { name: 'Dismiss' }).click();
    assert.equal(await page.locator('.banner').count(), 0);
    assert.equal(await page.evaluate(() => location.hash), '#/now');
  } },
  { name: 'states: a link that is pasted into a locked page opens it, a wrong one says so', run: async (h) => {
    const page = await h.open('', '#/jobs', { login: false, quiet: true });
    await page.getByRole('heading', { name: 'Locked' }).waitFor();
    await h.go(page, '#k=wrong');
    await page.locator('.locked [role=alert]', { hasText: 'not the one' }).waitFor();
    assert.equal(await page.evaluate(() => location.hash), '#/jobs');
    await h.go(page, '#k=small');
    await page.locator('[role=grid]').waitFor();
    assert.equal(await page.evaluate(() => location.hash), '#/jobs');
    await h.go(page, '#k=wrong');
    await page.locator('.banner', { hasText: 'goes on with the one it has' }).waitFor();
    await page.locator('.pulse.is-live').waitFor();
    const other = await (await h.fresh()).newPage();
    await other.goto(`${h.url}/#k=mistaken`);
    await other.locator('.locked [role=alert]', { hasText: 'not the one' }).waitFor();
    assert.ok(!other.url().includes('k='));
  } },
  { name: 'states: locked asks for a key and takes a link', run: async (h) => {
    const page = await h.open('', '#/actors', { login: false, quiet: true });
    await page.getByRole('heading', { name: 'Locked' }).waitFor();
    await page.getByLabel('Key or link').fill('wrong');
    await page.getByRole('button', { name: 'Unlock' }).click();
    await page.locator('.locked [role=alert]', { hasText: 'not the one' }).waitFor();
    await page.getByLabel('Key or link').fill(`${h.url}/#k=small`);
    await page.getByRole('button', { name: 'Unlock' }).click();
    await page.locator('[role=grid]').waitFor();
    assert.equal(await page.evaluate(() => location.hash), '#/actors');
  } },
];
