// Takes the pictures of README.md and docs/inspection.md: pages of the recorded training that the command holds.
// ODEON_BIN=target/debug/odeon ODEON_NODE_MODULES=target/ui-tools/node_modules node cli/ui/test/pictures.mjs
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { harness, ready, titleOf } from './browser/harness.mjs';
import { shown } from './demo.mjs';

const images = join(dirname(fileURLToPath(import.meta.url)), '../../../docs/images');
const require = createRequire(resolve(process.env.ODEON_NODE_MODULES, 'x.js'));
const chromium = process.env.ODEON_CHROMIUM ?? '/usr/bin/chromium';

/** A page, which share of the run has gone by, and in which theme. */
const pictures = [
  ['runs', 0.9, 'light'],
  ['timeline', 0.97, 'dark'],
];

const it = await shown(['demo', 'rl']);
const h = await harness({ require, chromium, url: new URL(it.link).origin, key: null });
try {
  const bar = await it.steer({ paused: true });
  for (const [name, share, colorScheme] of pictures) {
    await it.steer({ at: bar.from + (bar.to - bar.from) * share });
    const page = await h.openAt(it.link, `#/${name}`, { context_: { colorScheme } });
    await ready(page, titleOf(name));
    await page.waitForTimeout(1500);
    await page.screenshot({ path: join(images, `${name}.png`) });
  }
} finally {
  await h.clean();
  await h.close();
  await it.stop();
}
