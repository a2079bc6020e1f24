// What lives: held orders, pause, lost connections, restarts, hidden pages, deltas.
import assert from 'node:assert/strict';
import { ready, titleOf, until } from './harness.mjs';

const names = (page) => page.locator('[role=grid] .body [role=row] .name').allInnerTexts();
const hide = (page, hidden) => page.evaluate((on) => {
  Object.defineProperty(document, 'hidden', { configurable: true, get: () => on });
  Object.defineProperty(document, 'visibilityState', { configurable: true, get: () => (on ? 'hidden' : 'visible') });
  document.dispatchEvent(new Event('visibilitychange'));
}, hidden);

export const scenarios = [
  { name: 'live: deltas change what is seen', run: async (h) => {
    const page = await h.open('big', '#/actors?sort=-rate');
    await ready(page);
    const first = (await names(page)).join();
    await until('another order', async () => (await names(page)).join() !== first);
    assert.match(await page.locator('.pulse').innerText(), /live/);
  } },
  { name: 'live: the order is held while pointed at, and says how many rows would move', run: async (h) => {
    const page = await h.open('big', '#/actors?sort=-rate');
    await ready(page);
    await page.locator('[role=grid] .body [role=row]').nth(2).hover();
    await page.waitForTimeout(300);
    const first = (await names(page)).join();
    const chip = page.locator('.chip.floating', { hasText: /order paused - [\d,]+ moves?/ });
    await chip.waitFor();
    await page.waitForTimeout(1200);
    assert.equal((await names(page)).join(), first);
    await page.mouse.move(1270, 5);
    await until('it moves again', async () => (await names(page)).join() !== first);
    await chip.waitFor({ state: 'detached' });
  } },
  { name: 'live: a click on a column sorts by it and leaves the order free', run: async (h) => {
    const page = await h.open('big', '#/actors');
    await ready(page);
    await page.getByRole('columnheader', { name: 'Msgs/s' }).getByRole('button').click();
    await page.locator('[role=columnheader][aria-sort=descending]', { hasText: 'Msgs/s' }).waitFor();
    const first = (await names(page)).join();
    await until('another order', async () => (await names(page)).join() !== first);
    assert.equal(await page.locator('.chip.floating').count(), 0);
  } },
  { name: 'live: a filter that is given while paused is applied at that moment', run: async (h) => {
    const page = await h.open('oom', '#/actors');
    await ready(page);
    await page.keyboard.press('Space');
    await page.locator('.pulse.is-paused').waitFor();
    await page.locator('main input[type=search]').fill('state:failed');
    await until('three rows', async () => (await names(page)).length === 3);
    await h.go(page, '#/events?f=kind:restart');
    await until('restarts only', async () => (await page.locator('[role=treegrid] .body .state').allInnerTexts()).every((t) => t === 'Restart'));
    await h.go(page, '#/timeline?f=trainer');
    await until('one lane', async () => (await page.locator('.gutter .lane').allInnerTexts()).join() === 'trainer');
    await page.locator('.pulse.is-paused').waitFor();
    assert.equal(await h.streams('oom'), 0);
  } },
  { name: "live: the runtime's own actors and lanes are hidden on every page until they are asked for", run: async (h) => {
    const page = await h.open('rl', '#/timeline?open=n:n1,n:n2,p:p1,p:p2');
    page.on('request', (r) => assert.ok(!/view=(actors|cluster)/.test(r.url()) || !/timeline/.test(page.url()), 'lanes say themselves whose they are'));
    await page.locator('.gutter .lane', { hasText: 'rollout/pool-n2' }).waitFor();
    const own = page.locator('.gutter .lane', { hasText: 'system' });
    assert.equal(await own.count(), 0);
    const sys = page.getByRole('button', { name: 'system actors too' });
    await sys.click();
    await own.nth(3).waitFor();
    assert.match(await page.evaluate(() => location.hash), /^#\/timeline/);
    await h.go(page, '#/actors');
    await page.locator('[role=grid] .name', { hasText: 'Registry' }).first().waitFor();
    await sys.click();
    await until('they are gone', async () => (await names(page)).every((n) => !/Registry/.test(n)));
  } },
  { name: 'live: lanes that are left out are counted in the last row', run: async (h) => {
    const page = await h.open('big', '#/timeline?open=n:n1,p:p1');
    await page.locator('.rest', { hasText: /[\d,]+ less busy lanes are left out/ }).waitFor({ state: 'attached' });
    assert.match(await page.locator('.corner').innerText(), /^\d+ of [\d,]+ lanes/);
  } },
  { name: 'live: a click on a problem opens what it is about', run: async (h) => {
    const page = await h.open('small', '#/now');
    await page.locator('.problem .sentence', { hasText: 'pretrain-8b has been pending' }).click();
    await page.locator('aside.drawer h2', { hasText: 'pretrain-8b' }).waitFor();
  } },
  { name: 'live: pause freezes and frees the stream, Space goes on', run: async (h) => {
    const page = await h.open('oom', '#/actors?sort=-rate');
    await ready(page);
    assert.equal(await h.streams('oom'), 1);
    await page.keyboard.press('Space');
    await page.locator('.pulse', { hasText: /paused, shown as of \d\d:\d\d:\d\d/ }).waitFor();
    await until('the stream is free', async () => (await h.streams('oom')) === 0);
    const before = await page.locator('[role=grid]').innerText();
    await page.waitForTimeout(1200);
    assert.equal(await page.locator('[role=grid]').innerText(), before);
    for (const p of ['jobs', 'timeline', 'now']) {
      await h.go(page, `#/${p}`);
      await ready(page, titleOf(p));
    }
    await page.locator('.pulse.is-paused').waitFor();
    await page.keyboard.press('Space');
    await page.locator('.pulse.is-live').waitFor();
  } },
  { name: 'live: a lost connection comes back by itself', run: async (h) => {
    const page = await h.open('deadlock', '#/actors', { quiet: true });
    await ready(page);
    await h.control({ refuse: true, drop: true, world: 'deadlock' });
    await page.locator('.pulse', { hasText: 'disconnected' }).waitFor();
    assert.ok((await names(page)).length > 5);
    await h.control({ refuse: false });
    await page.locator('.pulse.is-live').waitFor();
    assert.equal(await page.locator('.banner', { hasText: 'restarted' }).count(), 0);
  } },
  { name: 'live: a new epoch says that the daemon restarted', run: async (h) => {
    const page = await h.open('rl', '#/actors', { quiet: true });
    await ready(page);
    await h.control({ epoch: `e-${Date.now()}`, drop: true, world: 'rl' });
    await page.locator('.banner', { hasText: /daemon restarted \d\d:\d\d:\d\d: numbers and spans start here/ }).waitFor();
    assert.equal(await page.locator('[role=grid] .cell', { hasText: /^-\d/ }).count(), 0);
    await page.getByRole('button', { name: 'Dismiss' }).click();
    await page.locator('.banner').waitFor({ state: 'detached' });
  } },
  { name: 'live: a stream that falls silent is taken for dead', run: async (h) => {
    const page = await h.open('lost', '#/actors', { quiet: true });
    await ready(page);
    await h.control({ silence: true, refuse: true, world: 'lost' });
    await page.locator('.pulse', { hasText: 'disconnected' }).waitFor({ timeout: 20_000 });
    await h.control({ refuse: false });
    await page.locator('.pulse.is-live').waitFor();
  } },
  { name: 'live: eight tabs of one browser, hidden ones let go, one comes back', run: async (h) => {
    const context = await h.fresh();
    const tabs = [];
    for (let i = 0; i < 8; i += 1) {
      const page = await h.open('broadcast', '#/actors', { context });
      await ready(page);
      tabs.push(page);
      if (i < 7) await hide(page, true);
    }
    await until('one stream', async () => (await h.streams('broadcast')) === 1);
    await hide(tabs[2], false);
    await tabs[2].locator('.pulse.is-live').waitFor();
    await until('two streams', async () => (await h.streams('broadcast')) === 2);
  } },
  { name: 'live: a hidden timeline asks for nothing', run: async (h) => {
    const page = await h.open('broadcast', '#/timeline');
    await page.locator('.gutter .lane').nth(2).waitFor();
    await hide(page, true);
    await page.waitForTimeout(600);
    let asked = 0;
    page.on('request', () => { asked += 1; });
    await page.waitForTimeout(1500);
    assert.equal(asked, 0);
    await hide(page, false);
    await until('it asks again', () => asked > 0);
  } },
  { name: 'live: events follow their end until one scrolls up', run: async (h) => {
    const page = await h.open('big', '#/events');
    await ready(page, 'Events');
    const atEnd = () => page.evaluate(() => { const g = document.querySelector('.tail .grid'); return g.scrollHeight - g.scrollTop - g.clientHeight < 30; });
    await until('at the end', atEnd);
    await page.evaluate(() => { document.querySelector('.tail .grid').scrollTop = 500; });
    const chip = page.locator('.tail .chip.floating', { hasText: /\d+ new/ });
    await chip.waitFor();
    await chip.click();
    await until('at the end again', atEnd);
  } },
  { name: 'live: problems, the sentence of waits, the circle of a deadlock', run: async (h) => {
    const page = await h.open('small', '#/actors?sel=actor:a0');
    await page.locator('.waits', { hasText: /trainer asks rollout\/pool-n1 for Collect .*, which wants room in the mailbox of rollout\/worker-4/ }).waitFor();
    const dead = await h.open('deadlock', '#/now');
    await dead.locator('.problem', { hasText: 'none can go on' }).getByRole('link', { name: 'trainer' }).click();
    await dead.locator('.drawer .waits.circle', { hasText: 'they wait for each other' }).waitFor();
  } },
  { name: 'live: a refusal is a table, a broadcast names its straggler', run: async (h) => {
    const page = await h.open('small', '#/jobs?sel=job:j9');
    await page.locator('aside.drawer table', { hasText: '6 of 8 GPUs are leased to j7' }).waitFor();
    const board = await h.open('broadcast', '#/transfers');
    await board.locator('.flow .slow').first().waitFor();
    await board.getByText(/Slow: rollout\/worker-11/).waitFor();
    assert.equal(await board.locator('.board tbody tr').count(), 24);
  } },
  { name: 'live: an area of the timeline is summed, a span is opened, an arrow leads to its effects', run: async (h) => {
    const page = await h.open('calm', '#/timeline?w=8000');
    await page.locator('.gutter .lane', { hasText: 'trainer' }).waitFor();
    const box = await page.locator('.hold canvas').boundingBox();
    await page.mouse.move(box.x + 200, box.y + 30);
    await page.mouse.down();
    await page.mouse.move(box.x + 500, box.y + 150, { steps: 4 });
    await page.mouse.up();
    await page.locator('.panel [role=grid] .body [role=row]').first().waitFor();
    assert.match(await page.evaluate(() => location.hash), /area=[\d.]+,[\d.]+/);
    assert.match(await page.locator('.panel .note').innerText(), /from \d\d:/);
    const lane = await page.locator('.gutter .lane', { hasText: 'trainer' }).boundingBox();
    await page.keyboard.press('Space');
    await until('a span is opened', async () => {
      await page.mouse.move(box.x + 100 + Math.random() * 700, lane.y + 11);
      await page.waitForTimeout(80);
      if (!(await page.locator('.tip').count())) return false;
      await page.mouse.down();
      await page.mouse.up();
      return /sel=span:s0/.test(await page.evaluate(() => location.hash));
    });
    await page.locator('aside.drawer', { hasText: 'Effects' }).waitFor();
  } },
  { name: 'live: a replay is steered', run: async (h) => {
    const page = await h.open('replay', '#/now');
    await page.locator('.replay', { hasText: 'oom-loop.replay' }).waitFor();
    assert.equal(await page.locator('.pulse.is-recorded').innerText(), 'recorded');
    await page.getByRole('button', { name: '16x' }).click();
    await page.locator('.replay [aria-pressed=true]', { hasText: '16x' }).waitFor();
    await page.getByRole('button', { name: 'Hold the recording' }).click();
    await page.getByRole('button', { name: 'Play the recording' }).waitFor();
    await page.getByLabel('Place in the recording').fill('100');
    await until('it moved', async () => /^1[0-9] s of|^12 s of/.test(await page.locator('.replay .num').innerText()));
  } },
];
