// What single things tell of themselves: waits, dead letters, mailboxes, failures, placement, logs, refusals, progress.
import assert from 'node:assert/strict';
import { ready, until } from './harness.mjs';

const narrow = { context_: { viewport: { width: 360, height: 740 }, hasTouch: true } };
const fits = (page) => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth && document.querySelector('.app').scrollWidth <= innerWidth);
const fact = (page, name) => page.locator('aside.drawer .facts > div', { has: page.locator('dt', { hasText: new RegExp(`^${name}$`) }) }).locator('dd');
const log = (page) => page.locator('aside.drawer .log, main .log');

/** The last message of the trainer that failed. */
const failedSpan = (page) => page.evaluate(async () => {
  for (let to = Date.now() - 2000; ; to -= 30_000) {
    const answer = await fetch(`/api/v1/inspect/spans?lane=a:a0&from=${to - 30_000}&to=${to}&limit=5000`);
    const failed = (await answer.json()).data.spans.find((s) => s && !s.ok);
    if (failed) return failed;
  }
});

export const scenarios = [
  { name: 'facts: who waits longest is a sentence to the end of the chain, and a click opens it', run: async (h) => {
    const page = await h.open('small', '#/now');
    const row = page.locator('.waiting li').first();
    await row.filter({ hasText: /trainer asks rollout\/pool-n1 for Collect \(\d+ s\), which wants room in the mailbox of rollout\/worker-4.*\d+ s$/s }).waitFor();
    assert.equal(await page.locator('.waiting li').count(), 2);
    await h.axe(page, 'waiting');
    const box = await row.boundingBox();
    await page.mouse.click(box.x + box.width - 6, box.y + box.height / 2);
    await page.locator('aside.drawer h2', { hasText: 'trainer' }).waitFor();
    const dead = await h.open('deadlock', '#/now');
    await dead.locator('.waiting li.circle', { hasText: 'they wait for each other' }).nth(2).waitFor();
    const calm = await h.open('calm', '#/now');
    await ready(calm, 'Now');
    assert.equal(await calm.getByRole('heading', { name: 'Waiting' }).count(), 0);
    const small = await h.open('small', '#/now', narrow);
    await small.locator('.waiting li').first().waitFor();
    assert.ok(await fits(small));
  } },
  { name: 'facts: dead letters stand in the table of processes where there are any', run: async (h) => {
    const page = await h.open('small', '#/cluster?sel=node:n2');
    const table = page.locator('aside.drawer table[aria-label=Processes]');
    await table.waitFor();
    assert.match(await table.innerText(), /dead letters/);
    assert.equal(await table.locator('tbody tr', { hasText: 'worker p2' }).locator('td').last().innerText(), '17');
    assert.equal(await fact(page, 'dead letters').innerText(), '17');
    await h.go(page, '#/cluster?sel=process:p2');
    assert.equal(await fact(page, 'dead letters').innerText(), '17');
    assert.equal(await fact(page, 'dead letters').locator('[title]').getAttribute('title'), 'messages that nobody handled');
    await h.go(page, '#/cluster?sel=node:n1');
    await page.locator('aside.drawer h2', { hasText: 'n1' }).first().waitFor();
    await table.waitFor();
    assert.ok(!/dead letters/.test(await table.innerText()));
    const small = await h.open('small', '#/cluster?sel=node:n2', narrow);
    await small.locator('aside.drawer table[aria-label=Processes]').waitFor();
    assert.ok(await fits(small));
  } },
  { name: 'facts: a mailbox says its bytes, in the drawer and where it is pointed at', run: async (h) => {
    const page = await h.open('calm', '#/actors?sort=-mailbox&sel=actor:a2');
    assert.match(await fact(page, 'mailbox').innerText(), /^\d+ of 1,024, [\d.]+ KiB$/);
    await page.locator('[role=grid] .body [role=row]', { hasText: 'store' }).locator('[title$=KiB]').first().waitFor();
  } },
  { name: 'facts: why an actor without devices is where it is', run: async (h) => {
    const page = await h.open('calm', '#/actors?sel=actor:a1');
    assert.equal(await fact(page, 'why there').innerText(), 'in the process of trainer: it asked for no room and no process of its own');
  } },
  { name: 'facts: the words of a failure keep their lines and stay within the drawer; the trace marks it', run: async (h) => {
    const page = await h.open('small', '#/events');
    const span = await failedSpan(page);
    await h.go(page, `#/events?sel=span:${span.id}`);
    const words = page.locator('aside.drawer .words');
    await words.filter({ hasText: /^OutOfMemory: asked 12\.0 GiB, free 3\.1 GiB\n/ }).waitFor();
    const size = await words.evaluate((e) => ({ tall: e.clientHeight, all: e.scrollHeight, wide: e.scrollWidth <= e.clientWidth }));
    assert.ok(size.tall <= 240 && size.all > size.tall && size.wide, JSON.stringify(size));
    await h.axe(page, 'a failed span');
    await h.go(page, `#/timeline?panel=trace&trace=${span.trace}&sel=span:${span.id}`);
    await page.locator('.falls li').first().waitFor();
    const bad = page.locator('.falls li', { has: page.locator('.swatch.bad') });
    assert.ok((await bad.count()) > 0);
    assert.equal(await page.locator('.falls .state.tone-failed').count(), await bad.count());
  } },
  { name: 'facts: logs of a job, a process and an actor, by whom where there are several, or why there are none', run: async (h) => {
    const page = await h.open('small', '#/jobs?sel=job:j8');
    await log(page).filter({ hasText: /driver/ }).waitFor();
    await log(page).filter({ hasText: /attempt 3/ }).waitFor();
    await h.axe(page, 'a log of several processes');
    await log(page).getByRole('link', { name: 'p4', exact: true }).first().click();
    await page.locator('aside.drawer h2', { hasText: 'worker p4' }).waitFor();
    await log(page).waitFor();
    assert.equal(await log(page).getByRole('link').count(), 0);
    const lines = () => page.locator('aside.drawer .log > span').count();
    const before = await lines();
    await page.getByRole('button', { name: 'Earlier lines' }).click();
    await until('earlier ones', async () => (await lines()) > before);
    await h.go(page, '#/jobs?sel=process:d1');
    await page.locator('aside.drawer', { hasText: 'what daemons say is in the journal of their machine' }).waitFor();
    await h.go(page, '#/actors?sel=actor:a0');
    await page.getByRole('heading', { name: 'Log of its process' }).waitFor();
    await log(page).waitFor();
    await h.go(page, '#/runs');
    await page.locator('main .log', { hasText: 'driver' }).waitFor();
    await h.go(page, '#/runs?run=default/j5.1');
    await page.locator('main .section', { hasText: 'the lines of j5 are kept no more' }).waitFor();
  } },
  { name: 'facts: a run by itself has its log, and Now says how far it is', run: async (h) => {
    const asked = [];
    const page = await h.open('run', '#/now');
    page.on('request', (r) => asked.push(new URL(r.url()).search));
    const line = page.locator('.progress.line');
    await line.filter({ hasText: /rl-grid.*\d+ of 600 steps\s+\d+ %/s }).waitFor();
    assert.ok((await line.locator('.bar .fill').boundingBox()).width > 10);
    await h.axe(page, 'how far a run is');
    await line.getByRole('link').click();
    await ready(page, 'Runs');
    await page.locator('main .log').waitFor();
    assert.ok(asked.includes('?limit=100'), asked.join(' '));
    const more = await h.open('rl', '#/now');
    await ready(more, 'Now');
    assert.equal(await more.locator('.progress.line').count(), 0);
    const small = await h.open('run', '#/now', narrow);
    await small.locator('.progress.line').waitFor();
    assert.ok(await fits(small));
  } },
  { name: 'facts: a refusal says what to do, and the number of its request is copied', run: async (h) => {
    const context = await h.fresh({ context_: { permissions: ['clipboard-read', 'clipboard-write'] } });
    const page = await h.open('error', '#/actors', { context, quiet: true });
    const box = page.locator('main .failed');
    await box.locator('code', { hasText: /^odeon logs$/ }).waitFor();
    await box.getByRole('button', { name: 'Copy the number of the request' }).click();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'r-4711');
    const gone = await h.open('calm', '#/actors?sel=actor:nobody', { quiet: true });
    await gone.locator('aside.drawer .failed', { hasText: 'request r-4711' }).waitFor();
  } },
  { name: 'facts: problems are counted once, in the same word', run: async (h) => {
    const page = await h.open('small', '#/now');
    await page.locator('.problem').nth(5).waitFor();
    assert.match(await page.locator('.counts').innerText(), /6 problems/);
    await page.locator('.section', { hasText: 'Problems' }).locator('.note', { hasText: /^6 problems$/ }).first().waitFor();
    assert.deepEqual([...new Set(await page.locator('.problem > .state').allInnerTexts())], ['Error', 'Warning']);
  } },
  { name: 'facts: a problem has its evidence, what is done and what one can do, and stays when it is over', run: async (h) => {
    const page = await h.open('small', '#/now');
    await page.locator('.section', { hasText: 'Problems' }).getByRole('link', { name: '6 problems' }).click();
    await ready(page, 'Problems');
    const first = page.locator('.wrong').first();
    assert.equal(await page.locator('.wrong').count(), 6);
    await first.locator('.deeds', { hasText: /Done.*nothing: people are told.*You can.*odeon why JOB.*Evidence.*share 0\.98/s }).waitFor();
    await first.locator('.deeds code', { hasText: /^odeon why JOB$/ }).waitFor();
    await first.locator('.series .line').first().waitFor({ state: 'attached' });
    assert.ok(await page.locator('.wrong .series .begun').count() > 0, 'a line stands where it began');
    const over = page.locator('.section', { hasText: 'Over' });
    await over.locator('[role=row]', { hasText: /slow link.*n1.*120 ms to node n1/s }).waitFor();
    await over.locator('[role=row]', { hasText: 'slow link' }).click();
    await page.locator('aside.drawer', { hasText: 'n1' }).waitFor();
  } },
  { name: 'facts: actors that nobody named are told apart, by job where there are several', run: async (h) => {
    const page = await h.open('worn', '#/actors?sort=job', { quiet: true });
    await ready(page);
    const rows = page.locator('[role=grid] .body [role=row]', { hasText: 'job.Place 1' });
    await rows.nth(6).waitFor();
    const told = await rows.allInnerTexts();
    assert.equal(new Set(told.map((t) => t.split('\n').slice(0, 3).join())).size, 7);
    assert.match(told[0], /970990e1\s+j1\.1/);
    await rows.first().getByRole('link', { name: 'j1.1' }).click();
    assert.match(await page.evaluate(() => location.hash), /sel=job:j1$/);
    assert.match(await page.getByLabel('Filter').getAttribute('placeholder'), /job:/);
    const one = await h.open('calm', '#/actors');
    await ready(one);
    assert.equal(await one.getByRole('columnheader', { name: 'Job' }).count(), 0);
    const small = await h.open('worn', '#/actors', narrow);
    await ready(small);
    assert.equal(await small.getByRole('columnheader', { name: 'Job' }).count(), 0);
  } },
  { name: 'facts: the drawer tells the id, to be copied, and every cell of its tables can be read', run: async (h) => {
    const context = await h.fresh({ context_: { permissions: ['clipboard-read', 'clipboard-write'] } });
    const page = await h.open('worn', '#/actors?sel=actor:970990e3.1', { context });
    const drawer = page.locator('aside.drawer');
    assert.equal(await drawer.locator('.closer code').innerText(), '970990e3.1');
    await drawer.getByRole('button', { name: 'Copy its id' }).click();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), '970990e3.1');
    const small = await h.open('small', '#/cluster?sel=node:n2', narrow);
    await h.go(page, '#/cluster?sel=node:n2');
    await page.evaluate(() => localStorage.setItem('odeon.drawer', '480'));
    await page.reload();
    for (const p of [page, small]) {
      await p.locator('aside.drawer table[aria-label=Processes] td').first().waitFor();
      const outside = await p.locator('aside.drawer .many td').evaluateAll((all) => all.filter((td) => {
        const [cell, box] = [td.getBoundingClientRect(), td.closest('.scroll-x').getBoundingClientRect()];
        return cell.left < box.left - 1 || cell.right > box.right + 1 || td.scrollWidth > td.clientWidth;
      }).map((td) => td.textContent));
      assert.deepEqual(outside, []);
      await h.axe(p, 'tables in a drawer');
    }
  } },
  { name: 'facts: a kind of event that there is none of says which there are, and the events stay', run: async (h) => {
    const page = await h.open('small', '#/events?f=kind:foo');
    await page.locator('.filter.wrong [role=alert]', { hasText: 'no kind is called foo: failure, restart' }).waitFor();
    await page.locator('[role=treegrid] .body [role=row]').nth(5).waitFor();
    await page.locator('main input[type=search]').fill('severity:bad');
    await page.locator('.filter.wrong [role=alert]', { hasText: 'no severity is called bad: error, warning, info' }).waitFor();
    await h.axe(page, 'a kind that there is none of');
    await page.locator('main input[type=search]').fill('kind:failure');
    await until('failures', async () => (await page.locator('[role=treegrid] .body .state').allInnerTexts()).every((t) => t === 'Failed'));
  } },
];
