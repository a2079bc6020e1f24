// Ranks of a run on their mesh: who is where, what stands out, memory, lanes of a pipeline; and a real run of four.
import assert from 'node:assert/strict';
import { training } from '../training.mjs';
import { ready, until } from './harness.mjs';

const far = 90_000;
const narrow = { context_: { viewport: { width: 360, height: 740 }, hasTouch: true } };
const fits = (page) => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth && document.querySelector('.app').scrollWidth <= innerWidth);
const cell = (page, rank) => page.locator(`.mesh [data-rank="${rank}"]`);
const told = (page) => page.locator('.told');

/** Two copies of a model in two stages, small enough for two shared cores, and longer than anybody looks. */
const small = {
  'pretrain.steps': 100_000, 'pretrain.checkpoint_every': 100_000, 'pretrain.memory_every': 10, 'eval.every': 100_000, 'eval.tokens': 512, 'parallel.tp': 1, 'parallel.pp': 2,
  'model.hidden': 64, 'model.ffn': 64, 'plan.step.tokens': 4096, 'plan.microbatch.tokens': 512,
};

export const scenarios = [
  { name: 'mesh: eight ranks stand at their places, with where they are, how long they take and what became of them', run: async (h) => {
    const page = await h.open('mesh', '#/runs');
    await cell(page, 5).waitFor();
    await page.locator('.section .note', { hasText: '8 ranks: dp 2, pp 2, tp 2; step 120' }).waitFor();
    assert.match(await cell(page, 5).innerText(), /^5[^]*n2 \/ p5 \/ n2\/1[^]*3\d\d ms of 3\d\d ms/);
    assert.match(await cell(page, 5).getAttribute('class'), /\bfar\b/);
    assert.match(await cell(page, 4).innerText(), /dp 1, pp 0, tp 0, step 120: computes 2\d\d ms/);
    assert.match(await cell(page, 6).innerText(), /Lost/);
    assert.match(await cell(page, 7).innerText(), /Starting[^]*no step yet/);
    await cell(page, 3).hover();
    await told(page).filter({ hasText: /^rank 3\s+dp 0, pp 1, tp 1/ }).waitFor();
    await page.locator('.section p', { hasText: 'standby 0 on n2' }).waitFor();
    await h.axe(page, 'a mesh');
  } },
  { name: 'mesh: it is walked with keys, and Enter opens the rank', run: async (h) => {
    const page = await h.open('mesh', '#/runs');
    await cell(page, 0).focus();
    for (const [key, rank] of [['ArrowRight', 1], ['ArrowDown', 3], ['End', 7], ['ArrowUp', 5], ['ArrowLeft', 4], ['Home', 0]]) {
      await page.keyboard.press(key);
      assert.equal(await page.evaluate(() => document.activeElement?.getAttribute('data-rank')), String(rank), key);
      await told(page).filter({ hasText: new RegExp(`^rank ${rank}\\b`) }).waitFor();
    }
    assert.equal(await page.locator('.mesh [tabindex="0"]').count(), 1);
    await page.keyboard.press('Enter');
    await page.locator('aside.drawer h2').first().waitFor();
  } },
  { name: 'mesh: a slow tensor rank is seen in the means of its dimension, and those who wait for it by another colour', run: async (h) => {
    const page = await h.open('mesh', '#/runs');
    const row = page.locator('.means tbody tr', { has: page.locator('th', { hasText: 'tp' }) });
    await row.locator('td').nth(1).waitFor();
    assert.match(await row.locator('td').nth(1).getAttribute('class'), /furthest/);
    assert.match(await row.locator('td').nth(1).getAttribute('title'), /^tp 1: computes 31\d ms, exchanges [\d.]+ ms, waits [\d.]+ ms, the mean of 4 ranks$/);
    await page.getByRole('button', { name: 'exchange' }).click();
    await page.locator('.means th', { hasText: 'mean exchange' }).waitFor();
    assert.match(await cell(page, 1).getAttribute('class'), /below/);
    assert.doesNotMatch(await cell(page, 0).getAttribute('class'), /\bfar|below/);
  } },
  { name: 'mesh: the pipeline is lanes of passes, with its idle time beside that of its order', run: async (h) => {
    const page = await h.open('mesh', '#/runs');
    await page.locator('.pipe').nth(1).waitFor();
    assert.equal(await page.locator('.pipe').count(), 2);
    assert.deepEqual([await page.locator('.pipe .p-forward').count(), await page.locator('.pipe .p-backward').count()], [8, 8]);
    await page.locator('.section .note', { hasText: /4 micro-batches in 150 ms, idle 20 % of the time, where the order of 1f1b asks for 20 %/ }).waitFor();
    const first = page.locator('.pipe').nth(0);
    assert.match(await first.innerText(), /rank 0[^]*20 %\s+idle/);
    const [track, pass] = await Promise.all([first.locator('.track').boundingBox(), first.locator('.pass').first().boundingBox()]);
    assert.ok(Math.abs(pass.width / track.width - 10 / 150) < 0.01, `${pass.width} of ${track.width}`);
  } },
  { name: 'mesh: memory of each rank stands beside what is resident of its process', run: async (h) => {
    const page = await h.open('mesh', '#/runs');
    const rows = page.locator('table[aria-label="Memory by rank"] tbody tr');
    await rows.nth(7).waitFor();
    assert.match(await rows.nth(0).innerText(), /^0\s+900 MiB\s+900 MiB\s+1\.76 GiB\s+450 MiB\s+3\.96 GiB\s+4\.\d+ GiB$/);
    assert.match(await rows.nth(6).innerText(), /the process is gone/);
  } },
  { name: 'mesh: the machines of a run stand beside each other, the odd one deeper and with its course', run: async (h) => {
    const page = await h.open('mesh', '#/runs');
    const table = page.locator('table.machines');
    await table.waitFor();
    await page.locator('.section .note', { hasText: '6 machines; means of the last 5 minutes' }).waitFor();
    const of = (node, metric) => table.locator('tbody tr', { has: page.locator('th', { hasText: new RegExp(`^${node}\\b`) }) }).locator(`td[title^="${metric} of ${node}:"]`);
    assert.match(await of('n3', 'compute').getAttribute('class'), /furthest/);
    assert.match(await of('n3', 'compute').innerText(), /^\u2191 2\d\d ms/);
    assert.match(await of('n3', 'compute').getAttribute('title'), /robust deviations above the median$/);
    assert.match(await of('n3', 'exchange').innerText(), /^\u2193 /);
    assert.doesNotMatch(await of('n4', 'compute').getAttribute('class'), /near|far/);
    assert.match(await of('n4', 'clock').innerText(), /^19\d\d MHz|^20\d\d MHz/);
    assert.equal(await table.locator('td', { hasText: /^-$/ }).count(), 1);
    assert.match(await of('n3', 'compute').locator('svg path').getAttribute('d'), /^M0\.0 /);
    await table.getByRole('link', { name: 'n2' }).click();
    await page.locator('aside.drawer h2', { hasText: 'n2' }).waitFor();
    await h.axe(page, 'machines of a run');
  } },
  { name: 'mesh: a thousand ranks are a map, with those alike together', limitMs: 180_000, run: async (h) => {
    for (const options of [{ context_: { colorScheme: 'dark' } }, narrow]) {
      const page = await h.open('wide', '#/runs', options);
      await cell(page, 1023).waitFor();
      assert.equal(await page.locator('.mesh .rank').count(), 1024);
      assert.equal(await page.locator('.mesh .block').count(), 16);
      await cell(page, 0).focus();
      await page.keyboard.press('End');
      assert.match(await cell(page, 1023).getAttribute('aria-label'), /^rank 1023, running, n128 .*dp 15, pp 7, tp 7, step 120: computes/);
      await told(page).filter({ hasText: /^rank 1023\s+dp 15, pp 7, tp 7/ }).waitFor();
      assert.equal(await page.locator('table.machines tbody tr').count(), 64);
      await page.locator('.small', { hasText: 'those furthest from the others; 64 more are nearer' }).waitFor();
      const rows = page.locator('table[aria-label="Memory by rank"] tbody tr');
      assert.equal(await rows.count(), 2);
      assert.match(await rows.nth(1).innerText(), /8-63, 72-127[^]*896 ranks/);
      assert.ok(await fits(page));
      if (options !== narrow) await h.axe(page, 'a wide mesh');
      await page.context().close();
    }
  } },
  { name: 'mesh: a run of its own shows four ranks, where they are, their passes and memory, and one that is lost and made again', command: true, limitMs: 240_000, run: async (h) => {
    const it = await training(small);
    try {
      const page = await h.openAt(it.link, '#/runs', { context_: { viewport: { width: 1280, height: 2000 } } });
      await ready(page, 'Runs');
      await cell(page, 3).filter({ hasText: /computes/ }).waitFor({ timeout: far });
      assert.equal(await page.locator('.mesh .rank').count(), 4);
      assert.match(await cell(page, 3).innerText(), /dp 1, pp 1, step [\d,]+: computes /);
      await page.locator('.means tbody th', { hasText: 'pp' }).waitFor();
      await page.locator('.pipe').nth(1).locator('.p-backward').first().waitFor({ timeout: far });
      const { mesh } = (await it.ask('view?view=runs')).data.runs[0];
      const processes = (await it.ask('view?view=cluster')).data.nodes.flatMap((n) => n.processes);
      for (const r of mesh.ranks) {
        assert.equal(r.memory.optimizer, 2 * r.memory.parameters);
        assert.ok(r.resident > r.memory.parameters, JSON.stringify(r));
      }
      await h.axe(page, 'a run of four ranks');
      const before = mesh.ranks[1].process;
      process.kill(processes.find((p) => p.id === before).pid, 'SIGKILL');
      await until('it runs again elsewhere', async () => {
        const text = await cell(page, 1).innerText();
        return !text.includes(before) && /Running[^]*computes/.test(text);
      }, far);
    } finally {
      await h.leave();
      await it.stop();
    }
  } },
];
