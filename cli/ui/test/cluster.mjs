// A cluster of two nodes on this machine, by the command itself; nothing of it is left when it ends.
import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, readlinkSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { until } from './browser/harness.mjs';

const exec = promisify(execFile);

/** A port that nobody listens on. */
const freePort = () => new Promise((done, no) => {
  const server = createServer().once('error', no).listen(0, '127.0.0.1', () => {
    const { port } = server.address();
    server.close(() => done(port));
  });
});

/** The processes that know the folder: those of its daemons, and of what these run. @param {string} folder */
function processesOf(folder) {
  const mentions = (pid) => {
    try {
      return ['environ', 'cmdline'].some((f) => readFileSync(`/proc/${pid}/${f}`).includes(folder)) || ['cwd', 'exe'].some((f) => readlinkSync(`/proc/${pid}/${f}`).startsWith(folder));
    } catch {
      return false;
    }
  };
  return readdirSync('/proc').filter((pid) => /^\d+$/.test(pid)).map(Number).filter(mentions);
}

/** Kills a process, if it is still there. @param {number} pid */
function killed(pid) {
  try {
    process.kill(pid, 'SIGKILL');
  } catch (error) {
    if (error.code !== 'ESRCH') throw error;
  }
}

/** Starts it. */
export async function cluster() {
  const folder = mkdtempSync(join(tmpdir(), 'odeon-real-'));
  const dirs = { head: join(folder, 'head'), other: join(folder, 'other') };
  /** Runs the command at a node. */
  const odeon = async (node, ...args) => {
    const env = { ...process.env, ODEON_DIR: dirs[node] };
    delete env.ODEON_LOG;
    const { stdout } = await exec(process.env.ODEON_BIN, args, { env, cwd: folder, timeout: 60_000 });
    return stdout.trim();
  };
  const api = await freePort();
  const up = () => odeon('head', 'up', '--name', 'head', '--api', `127.0.0.1:${api}`, '--on-demand-above-mib', '1000000');
  const pidOf = (node) => Number(readFileSync(join(dirs[node], 'daemon.pid'), 'utf8'));
  const kill = async (node) => {
    const pid = pidOf(node);
    killed(pid);
    await until('the daemon is gone', () => !processesOf(folder).includes(pid));
  };
  // Also when the tests are ended from outside.
  const swept = () => {
    for (const pid of processesOf(folder)) killed(pid);
    rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  };
  const signalled = () => process.exit(1);
  process.once('exit', swept).once('SIGINT', signalled).once('SIGTERM', signalled);
  const end = async () => {
    for (const node of ['other', 'head']) await odeon(node, 'down').catch(() => {});
    const all = () => processesOf(folder);
    const left = await until('its processes end', () => !all().length, 15_000).then(() => [], all);
    swept();
    process.off('exit', swept).off('SIGINT', signalled).off('SIGTERM', signalled);
    await until('they are gone', () => !all().length);
    if (left.length) throw new Error(`processes were left behind: ${left.join(' ')}`);
  };
  try {
    for (const dir of Object.values(dirs)) mkdirSync(dir);
    await up();
    const { address, token } = JSON.parse(await odeon('head', 'token', '--json'));
    await odeon('other', 'join', address, '--token', token, '--name', 'other', '--api', '127.0.0.1:0', '--on-demand-above-mib', '1000000');
    const link = await odeon('head', 'ui');
    const [origin, key] = link.split('/#k=');
    const ask = async (path) => (await fetch(`${origin}/api/v1/inspect/${path}`, { headers: { authorization: `Bearer ${key}` } })).json();
    return { folder, odeon, ask, up, kill, end, link };
  } catch (error) {
    await end().catch(() => {});
    throw error;
  }
}
