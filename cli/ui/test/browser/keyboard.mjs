// Everything without a mouse, and addresses that bring a view back.
import assert from 'node:assert/strict';
import { pages, ready, titleOf, until } from './harness.mjs';

const letters = { now: 'n', problems: 'p', cluster: 'c', actors: 'a', jobs: 'j', runs: 'r', timeline: 't', transfers: 'x', events: 'e' };
const hash = (page) => page.evaluate(() => location.hash);
const press = async (page, ...keys) => { for (const k of keys) await page.keyboard.press(k); };
const focused = (page) => page.evaluate(() => document.activeElement?.getAttribute('aria-rowindex'));

export const scenarios = [
  { name: 'keyboard: g and a letter reach every page', anywhere: true, run: async (h) => {
    const page = await h.open('small');
    await ready(page);
    for (const p of pages) {
      await press(page, 'g', letters[p]);
      await ready(page, titleOf(p));
    }
  } },
  { name: 'keyboard: tables are walked, opened, closed', anywhere: true, run: async (h) => {
    const page = await h.open('small', '#/actors?f=system:any');
    await ready(page);
    await page.locator('[role=grid] .body [role=row]').nth(3).waitFor();
    await press(page, 'j');
    assert.equal(await focused(page), '2');
    await press(page, 'j', 'j', 'k', 'End');
    const last = Number(await page.locator('[role=grid]').getAttribute('aria-rowcount'));
    assert.equal(await focused(page), String(last));
    await press(page, 'Home', 'ArrowDown', 'Enter');
    await page.locator('aside.drawer h2').first().waitFor();
    assert.match(await hash(page), /sel=actor:/);
    await press(page, 'Escape');
    await page.locator('aside.drawer').waitFor({ state: 'detached' });
    assert.equal(await focused(page), '3');
  } },
  { name: 'keyboard: the tree folds with h and l', run: async (h) => {
    const page = await h.open('calm', '#/actors?tree=1');
    await ready(page);
    const rows = async () => Number(await page.locator('[role=treegrid]').getAttribute('aria-rowcount'));
    await press(page, 'j');
    const before = await page.locator('[role=treegrid] .body [role=row]').count();
    await press(page, 'h');
    await until('folded', async () => (await page.locator('[role=treegrid] .body [role=row]').count()) < before);
    assert.equal(await page.locator('[role=row][aria-expanded=false]').count(), 1);
    await press(page, 'l');
    await until('open', async () => (await page.locator('[role=treegrid] .body [role=row]').count()) === before);
    assert.ok((await rows()) > 10);
  } },
  { name: 'keyboard: the palette finds pages, actors, nodes, jobs, commands', run: async (h) => {
    const page = await h.open('small');
    await ready(page);
    const find = async (text, hit, then) => {
      await press(page, 'Control+k');
      await page.locator('.palette input').fill(text);
      await page.locator('.palette [role=option][aria-selected=true]', { hasText: hit }).waitFor();
      await press(page, 'Enter');
      await until(`${text} leads to ${then}`, async () => then.test(await hash(page)));
    };
    await find('timl', 'Timeline', /#\/timeline/);
    await find('n3', 'n3', /sel=node:n3/);
    await find('pretrain', 'pretrain-8b', /sel=job:j9/);
    await find('worker-1170', 'rollout/worker-1170', /sel=actor:/);
    await find('failed act', 'Failed actors', /f=state:failed/);
    await press(page, 'Control+k');
    await page.locator('dialog.palette').waitFor();
    await press(page, 'Escape');
    await page.locator('dialog').waitFor({ state: 'detached' });
  } },
  { name: 'keyboard: ? lists keys; single keys can be turned off', anywhere: true, run: async (h) => {
    const page = await h.open('small', '#/timeline');
    await ready(page, 'Timeline');
    await press(page, '?');
    await page.locator('dialog', { hasText: 'Critical path' }).waitFor();
    await page.getByLabel('Shortcuts of a single key').uncheck();
    await press(page, 'Escape', 'g', 'a');
    await page.waitForTimeout(200);
    assert.match(await hash(page), /timeline/);
    await press(page, 'Control+k');
    await page.locator('dialog.palette').waitFor();
  } },
  { name: 'keyboard: / filters, n opens the next problem, f follows, b goes back', run: async (h) => {
    const page = await h.open('small', '#/actors');
    await ready(page);
    await press(page, '/');
    await page.keyboard.type('state:failed');
    await until('three rows', async () => (await page.locator('[role=grid] .body [role=row]').count()) === 3);
    await press(page, 'Escape', 'n');
    await page.locator('aside.drawer h2').first().waitFor();
    const first = await hash(page);
    await press(page, 'n');
    await until('another', async () => (await hash(page)) !== first);
    await press(page, 'N');
    await until('the first again', async () => (await hash(page)) === first);
    await press(page, 'f');
    await until('one row', async () => (await page.locator('[role=grid] .body [role=row]').count()) >= 1 && /f=a\d+/.test(await hash(page)));
    await press(page, 'b');
    await until('back', async () => /f=state:failed/.test(await hash(page)));
  } },
  { name: 'keyboard: the timeline is zoomed, moved, walked, and made live again', run: async (h) => {
    const page = await h.open('calm', '#/timeline');
    await ready(page, 'Timeline');
    await page.locator('.gutter .lane').nth(3).waitFor();
    await press(page, 'a');
    await until('its window is in the address', async () => /from=/.test(await hash(page)));
    await press(page, 'w', 'w', 's', 'd', '.');
    await page.locator('aside.drawer h2').first().waitFor();
    const one = await hash(page);
    await press(page, '.');
    await until('the next span', async () => (await hash(page)) !== one);
    await until('its cause and effects came', () => page.locator('aside.drawer', { hasText: /Cause|No cause/ }).count());
    await press(page, 'F', 'F', 'P');
    await page.locator('.falls li.on').first().waitFor();
    await press(page, 'End');
    await page.getByRole('button', { name: 'Live', pressed: true }).waitFor();
    await until('the window left the address', async () => !/from=/.test(await hash(page)));
  } },
  { name: 'address: a link brings back page, filter, order, selection', run: async (h) => {
    const page = await h.open('small', '#/actors?f=node:n2 mailbox>3&sort=-mailbox&sel=actor:a0');
    await page.locator('aside.drawer h2', { hasText: 'trainer' }).waitFor();
    await page.locator('[role=columnheader][aria-sort=descending]', { hasText: 'Mailbox' }).waitFor();
    const before = await hash(page);
    const again = await h.open('small', before, { context: page.context() });
    await again.locator('aside.drawer h2', { hasText: 'trainer' }).waitFor();
    assert.equal(await again.locator('main input[type=search]').inputValue(), 'node:n2 mailbox>3');
    assert.equal(await hash(again), before);
    await again.reload();
    await again.locator('aside.drawer h2', { hasText: 'trainer' }).waitFor();
    assert.equal(await hash(again), before);
  } },
  { name: 'address: a window of the timeline comes back', run: async (h) => {
    const page = await h.open('calm', '#/timeline');
    await page.locator('.gutter .lane').nth(3).waitFor();
    await press(page, 'a', 'w');
    const link = await until('it is in the address', async () => ((await hash(page)).includes('from=') ? hash(page) : null));
    const again = await h.open('calm', link, { context: page.context() });
    await again.locator('.gutter .lane').nth(3).waitFor();
    assert.equal(await again.locator('.toolbar .note').innerText(), await page.locator('.toolbar .note').innerText());
  } },
];
