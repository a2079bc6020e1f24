// Names are text, requests stay at home, the key leaves the address, files stay within their budget.
import assert from 'node:assert/strict';
import { pages, ready, titleOf } from './harness.mjs';

const drawers = ['actor:a0', 'actor:a20', 'node:n2', 'device:n1/0', 'job:j9', 'job:j8', 'process:p1', 'transfer:c1', 'span:s4.1350000000'];

export const scenarios = [
  { name: 'safe: markup in any name, message or log line is never markup', run: async (h) => {
    const page = await h.open('xss', '#/now');
    const clean = async (where) => {
      assert.equal(await page.locator('img').count(), 0, where);
      assert.ok((await page.locator('body').innerText()).includes('<img src=x onerror=alert(1)>'), `${where} shows it as text`);
    };
    for (const p of pages) {
      await h.go(page, `#/${p}${p === 'timeline' ? '?panel=spans' : p === 'cluster' ? '?links=1' : ''}`);
      await ready(page, titleOf(p));
      await page.waitForTimeout(300);
      await clean(p);
    }
    for (const sel of drawers) {
      await h.go(page, `#/jobs?sel=${sel}`);
      await page.locator('aside.drawer h2').first().waitFor();
      await page.waitForTimeout(250);
      await clean(sel);
    }
    await page.keyboard.press('Control+k');
    await page.locator('.palette [role=option]').nth(20).waitFor();
    await clean('palette');
  } },
  { name: 'safe: the key leaves the address at once', anywhere: true, run: async (h) => {
    const page = await h.open('small');
    await ready(page);
    assert.ok(!(await page.evaluate(() => location.href + JSON.stringify(history.state))).includes('k='));
    assert.equal(await page.evaluate(() => document.cookie), '');
  } },
  { name: 'safe: the policy forbids everything but its own', anywhere: true, run: async (h) => {
    const policy = (await fetch(`${h.url}/`)).headers.get('content-security-policy') ?? '';
    for (const part of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"]) assert.ok(policy.includes(part), `${part} in ${policy}`);
    assert.ok(!policy.includes('unsafe'));
  } },
];
