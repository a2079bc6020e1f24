// A pretraining run by the command itself, with its pages; nothing of it is left when it ends.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** The recipe reads the pages of this repository. */
const root = join(dirname(fileURLToPath(import.meta.url)), '../../..');
const recipe = 'recipes/pretrain-llama.toml';

/** Starts it with fields of its recipe set. @param {Record<string, string | number>} fields */
export async function training(fields) {
  const folder = mkdtempSync(join(tmpdir(), 'odeon-training-'));
  const own = { 'run.out': folder, 'data.cache': join(folder, 'cache'), ...fields };
  const sets = Object.entries(own).flatMap(([name, value]) => ['--set', `${name}=${value}`]);
  const child = spawn(process.env.ODEON_BIN, ['run', recipe, ...sets], { cwd: root, stdio: ['ignore', 'ignore', 'pipe'] });
  const ended = new Promise((done) => child.on('exit', done));
  const said = [];
  const found = new Promise((link) => {
    createInterface({ input: child.stderr }).on('line', (line) => {
      said.push(line);
      const address = /http:\/\/\S+#k=\S+/.exec(line);
      if (address) link(address[0]);
    });
  });
  // Also when the tests are ended from outside.
  const swept = () => {
    child.kill('SIGKILL');
    rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  };
  const signalled = () => process.exit(1);
  process.once('exit', swept).once('SIGINT', signalled).once('SIGTERM', signalled);
  const stop = async () => {
    child.kill('SIGTERM');
    await ended;
    swept();
    process.off('exit', swept).off('SIGINT', signalled).off('SIGTERM', signalled);
  };
  const link = await Promise.race([
    found,
    ended.then(() => { throw new Error(`it ended: ${said.join('\n')}`); }),
    new Promise((_, no) => setTimeout(() => no(new Error(`no address in time: ${said.join('\n')}`)), 60_000).unref()),
  ]).catch(async (error) => {
    await stop();
    throw error;
  });
  const [origin, key] = link.split('/#k=');
  const ask = async (path) => (await fetch(`${origin}/api/v1/inspect/${path}`, { headers: { authorization: `Bearer ${key}` } })).json();
  return { link, ask, stop };
}
