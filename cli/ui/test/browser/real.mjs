// A real cluster: what waits for devices, a run that learns, its log and its spans, a head that is killed and comes back.
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { cluster } from '../cluster.mjs';
import { ready, until } from './harness.mjs';

const far = 40_000;

/** Small enough for two shared cores, and longer than anybody looks. */
const recipe = (out) => `[run]
name = "tiny"
out = "${out}"
[model]
hidden = 16
layers = 1
heads = 2
kv_heads = 2
ffn = 16
context = 32
[task.sums]
form = "compact"
operands_min = 2
operands_max = 2
digits_min = 1
digits_max = 1
[rl]
algorithm = "grpo"
steps = 100000
groups = 2
group_size = 2
lr = 0.001
response_max = 8
[processes]
rollouts = 1
slots = 4
[eval]
problems = 2
`;

/** What a run of it is made of. */
const actors = ['monitor', 'store', 'reward', 'relays', 'relay', 'rl.Source', 'rl.Trainer', 'rollout-0'];

const rows = (page) => page.locator('[role=grid] .body [role=row], [role=treegrid] .body [role=row]');

/** Fills both nodes with one gang, so that the next one has to wait. */
async function crowded(it) {
  const cores = await until('both nodes are seen', async () => {
    const { nodes } = (await it.ask('view?view=cluster')).data;
    return nodes.length === 2 && String(nodes[0].cores);
  }, far);
  const gang = (name, ranks) => it.odeon('head', 'submit', '--name', name, '--gang', ranks, '--cpus', cores, '--node', 'other', '--', 'sleep', '600');
  await gang('holds', '2');
  const placed = async () => (await it.ask('view?view=actors&filter=type:exec.Exec')).data.rows.filter((r) => r.state === 'idle').length === 2;
  await until('both ranks have their nodes', placed, far);
  await gang('waits', '1');
}

async function pending(h, page) {
  await page.locator('.problem', { hasText: /job j\d+ waits.*head has 0 of \d+ cpu free.*other has 0 of \d+ cpu free/ }).waitFor({ timeout: far });
  await h.axe(page, 'the page Now of a cluster');
}

async function jobs(h, page) {
  await h.go(page, '#/jobs');
  const row = rows(page).filter({ hasText: 'tiny' });
  await row.locator('.state', { hasText: 'Running' }).waitFor({ timeout: far });
  await row.locator('.name').click();
  await page.locator('aside.drawer h2', { hasText: 'tiny' }).waitFor();
  await until('its log has lines', async () => {
    await page.locator('aside.drawer').getByRole('button', { name: 'Newest' }).click();
    return /step 0/.test(await page.locator('aside.drawer .log').innerText({ timeout: 500 }).catch(() => ''));
  }, far);
}

async function processes(h, page) {
  await h.go(page, '#/cluster?sel=node:head');
  await page.locator('aside.drawer table[aria-label=Processes]').getByRole('link', { name: /^node / }).click();
  await page.locator('aside.drawer', { hasText: 'what daemons say is in the journal' }).waitFor();
}

async function runs(h, page) {
  await h.go(page, '#/runs');
  await page.locator('.progress', { hasText: /of 100,000 steps/ }).waitFor({ timeout: far });
  await page.locator('.curve canvas').nth(1).waitFor({ timeout: far });
  await page.locator('main .log', { hasText: 'step 0' }).waitFor();
}

/** From a span of the trainer to all that its message caused. */
async function trace(h, page) {
  await h.go(page, '#/timeline?w=400&f=trainer');
  await page.locator('.gutter .lane', { hasText: 'trainer' }).first().waitFor();
  const all = page.locator('aside.drawer a[href*="panel=trace"]');
  // What is chosen has the time to be shown before the next is: each may be forgotten meanwhile.
  await until('a span is chosen', async () => {
    await page.keyboard.press('.');
    return all.waitFor({ timeout: 5_000 }).then(() => true, () => false);
  }, far);
  await all.click();
  await page.locator('.falls li').first().waitFor();
}

/** What the page of events shows, each in one line: when, of what, what. */
async function events(h, page) {
  await h.go(page, '#/events');
  await ready(page, 'Events');
  const read = () => rows(page).evaluateAll((all) => all.map((row) => [row.querySelector('time').textContent, row.querySelector('.thing')?.title, row.lastElementChild.querySelector('[title]').title].join(' ')));
  return until('events are shown', async () => {
    const all = await read();
    return all.some((t) => t.includes('`tiny` submitted')) && all;
  }, far);
}

async function killed(it, h, page) {
  const before = await events(h, page);
  await it.kill('head');
  await page.locator('.top.amber .pulse', { hasText: /disconnected \d+ s, retrying/ }).waitFor();
  await page.locator('.honest', { hasText: /as of \d\d:\d\d:\d\d/ }).waitFor();
  assert.ok((await rows(page).count()) >= before.length, 'what was seen stays');
  await it.up();
  await page.locator('.pulse.is-live').waitFor({ timeout: far });
  await page.locator('.banner', { hasText: 'daemon restarted' }).waitFor();
  return before;
}

/** What was before is there once, and what has gone with the head has ended. */
async function after(h, page, before) {
  await rows(page).filter({ hasText: 'lost with node `head`' }).first().waitFor({ timeout: far });
  const seen = await events(h, page);
  const times = (all, text) => all.filter((t) => t === text).length;
  assert.deepEqual(before.filter((t) => times(seen, t) !== times(before, t)), []);
  await h.go(page, '#/actors?f=job:j1');
  await until(`its ${actors.length} actors have ended`, async () => {
    const all = await rows(page).allInnerTexts();
    return all.length === actors.length && actors.every((name) => all.some((t) => t.startsWith(name) && /Stopped|Failed/.test(t)));
  }, far);
  await h.go(page, '#/jobs');
  await rows(page).filter({ hasText: 'tiny' }).filter({ hasText: /Failed[^]*lost with node/ }).waitFor();
}

export const scenarios = [
  { name: 'real: a cluster of two nodes: what waits, a run, its log and spans, a head that is killed and comes back', command: true, limitMs: 180_000, run: async (h) => {
    const it = await cluster();
    try {
      writeFileSync(join(it.folder, 'tiny.toml'), recipe(join(it.folder, 'results')));
      await it.odeon('head', 'run', 'tiny.toml', '--cluster', '--detach', '--node', 'head');
      await crowded(it);
      const page = await h.openAt(it.link, '#/now', { quiet: true, context_: { viewport: { width: 1280, height: 2400 } } });
      await ready(page, 'Now');
      for (const part of [pending, jobs, processes, runs, trace]) await part(h, page);
      await after(h, page, await killed(it, h, page));
    } finally {
      await h.leave();
      await it.end();
    }
  } },
];
