// The command itself, showing a recording; ends with its test.
import { spawn, spawnSync } from 'node:child_process';
import { createInterface } from 'node:readline';

/** @param {string[]} args @returns {Promise<{ link: string, stop: () => Promise<void>, steer: (wish: any) => Promise<any> }>} */
export async function shown(args) {
  const child = spawn(process.env.ODEON_BIN, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  const ended = new Promise((done) => child.on('exit', done));
  let said = '';
  child.stderr.on('data', (piece) => { said += piece; });
  const lines = createInterface({ input: child.stdout });
  const link = await Promise.race([
    new Promise((found) => lines.once('line', found)),
    ended.then(() => { throw new Error(`odeon ${args.join(' ')}: ${said}`); }),
    new Promise((_, no) => setTimeout(() => no(new Error(`no address in time: ${said}`)), 20_000).unref()),
  ]);
  const [origin, key] = link.split('/#k=');
  const steer = async (wish) => {
    const answer = await fetch(`${origin}/api/v1/inspect/replay`, { method: 'POST', headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' }, body: JSON.stringify(wish) });
    if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
    return answer.json();
  };
  const stop = async () => {
    child.kill('SIGTERM');
    await ended;
  };
  return { link, stop, steer };
}

/** Runs it to its end. @param {string[]} args */
export function ran(args) {
  const { status, stdout, stderr } = spawnSync(process.env.ODEON_BIN, args, { encoding: 'utf8', timeout: 60_000 });
  if (status !== 0) throw new Error(`odeon ${args.join(' ')}: ${stderr}`);
  return stdout;
}
