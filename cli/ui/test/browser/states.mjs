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
