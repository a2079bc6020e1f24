// A stand-in for the daemon: serves the page with its policy, and the inspection API from scripted worlds.
// node cli/ui/test/mock.mjs [port]; the key in the link is the name of a world.

import { createServer } from 'node:http';
import { readFileSync } from 'node:fs';
import { dirname, extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { makeWorld, worldNames } from './mock/worlds.mjs';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const types = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript; charset=utf-8', '.css': 'text/css; charset=utf-8' };
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
const stepMs = 250;

/** @param {number} port */
export async function startMock(port = 0) {
  const worlds = new Map();
  const streams = new Set();
  const state = { refuse: false, served: 0 };
  const worldOf = (name) => {
    if (!worlds.has(name)) worlds.set(name, makeWorld(name));
    return worlds.get(name);
  };
  const server = createServer((req, res) => handle(req, res, { worldOf, streams, state }).catch((error) => {
    if (!res.headersSent) refuse(res, 500, 'internal', String(error?.stack ?? error));
    res.end();
  }));
  const timer = setInterval(() => tick(worlds, streams), stepMs);
  await new Promise((done) => server.listen(port, '127.0.0.1', () => done(null)));
  const { port: bound } = server.address();
  const close = () => {
    clearInterval(timer);
    for (const s of streams) s.res.destroy();
    server.closeAllConnections();
    return new Promise((done) => server.close(done));
  };
  return { url: `http://127.0.0.1:${bound}`, close };
}

async function handle(req, res, context) {
  const url = new URL(req.url, 'http://mock');
  if (url.pathname.startsWith('/mock/')) return control(req, res, url, context);
  if (!url.pathname.startsWith('/api/')) return asset(url.pathname, res);
  if (url.pathname === '/api/v1/session') return session(req, res);
  const name = /^Bearer ([\w-]+)$/.exec(req.headers.authorization ?? '')?.[1] ?? /odeon=([\w-]+)/.exec(req.headers.cookie ?? '')?.[1];
  if (!name || !worldNames.includes(name)) return refuse(res, 401, 'unauthorized', 'No key came with this request. Open the link that the daemon printed.');
  const world = context.worldOf(name);
  context.state.served += 1;
  const path = url.pathname.replace('/api/v1/inspect/', '');
  const query = Object.fromEntries(url.searchParams);
  if (req.method === 'POST') return act(world, path, await body(req), res);
  if (path !== 'about' && world.fault) return fault(world.fault, res);
  if (path === 'stream') return stream(world, query, res, context);
  if (path === 'export') return send(res, 200, { traceEvents: [] }, { 'content-disposition': 'attachment; filename="odeon.json"' });
  const answer = world.answer(path.split('/').map(decodeURIComponent), query);
  if (!answer) return refuse(res, 404, 'unknown', `Nothing is called ${path}. It may have been forgotten since.`);
  if (answer.invalid) return refuse(res, 400, 'invalid', answer.invalid);
  return send(res, 200, answer);
}

function asset(path, res) {
  const file = normalize(path === '/' ? '/index.html' : path);
  try {
    const bytes = readFileSync(join(root, file));
    res.writeHead(200, { 'content-type': types[extname(file)] ?? 'text/plain', 'content-security-policy': policy, 'x-content-type-options': 'nosniff', 'referrer-policy': 'no-referrer', 'cache-control': 'no-cache' });
    res.end(bytes);
  } catch {
    res.writeHead(404, { 'content-type': 'text/plain' });
    res.end('not found');
  }
}

async function session(req, res) {
  const { key } = await body(req);
  if (!worldNames.includes(key)) return refuse(res, 401, 'unauthorized', 'This key is not the one that the daemon printed. A key holds until the daemon ends.');
  res.writeHead(204, { 'set-cookie': `odeon=${key}; HttpOnly; SameSite=Strict; Path=/` });
  return res.end();
}

function act(world, path, input, res) {
  if (path === 'replay' && world.replay) {
    world.steer(input);
    return send(res, 200, world.replay);
  }
  return path.startsWith('actions/') ? send(res, 200, { sentence: `asked for ${path.slice(8)}` }) : refuse(res, 403, 'forbidden', 'Not allowed here.');
}

function fault(kind, res) {
  if (kind === 'slow') return undefined;
  return refuse(res, 500, 'internal', 'The sampler of n2 panicked while it read a counter. Retry; if it stays, `odeon logs` has the trace.');
}

function stream(world, query, res, { streams, state }) {
  if (state.refuse) return res.destroy();
  const first = world.answer(['view'], query);
  if (first?.invalid) return refuse(res, 400, 'invalid', first.invalid);
  res.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
  const s = { world, query, res, sent: Date.now(), silent: false };
  write(s, 'snapshot', first);
  streams.add(s);
  res.on('close', () => streams.delete(s));
  return undefined;
}

function tick(worlds, streams) {
  const open = new Set([...streams].map((s) => s.world));
  for (const world of worlds.values()) if (open.has(world)) world.step(stepMs);
  for (const s of streams) {
    if (s.silent) continue;
    const due = Date.now() - s.sent > 1900;
    const next = s.world.next(s.query, due);
    if (next) write(s, next.type, next.envelope);
    else if (due) s.res.write(': still here\n\n');
  }
}

function write(s, type, envelope) {
  s.sent = Date.now();
  s.res.write(`id: ${envelope.epoch}-${envelope.seq}\nevent: ${type}\ndata: ${JSON.stringify(envelope)}\n\n`);
}

async function control(req, res, url, { worldOf, streams, state }) {
  const mine = (name) => [...streams].filter((s) => !name || s.world.name === name);
  if (url.pathname === '/mock/stats') return send(res, 200, { streams: mine(url.searchParams.get('world')).length, served: state.served });
  const input = await body(req);
  if (input.drop) for (const s of mine(input.world)) s.res.destroy();
  if (input.refuse !== undefined) state.refuse = input.refuse;
  if (input.silence) for (const s of mine(input.world)) s.silent = true;
  if (input.epoch) worldOf(input.world).epoch = input.epoch;
  return send(res, 200, {});
}

async function body(req) {
  let text = '';
  for await (const chunk of req) text += chunk;
  return text ? JSON.parse(text) : {};
}

function send(res, status, data, headers = {}) {
  res.writeHead(status, { 'content-type': 'application/json', ...headers });
  res.end(JSON.stringify(data));
}

const refuse = (res, status, kind, why) => send(res, status, { kind, why }, { 'x-request-id': 'r-4711' });

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { url } = await startMock(Number(process.argv[2] ?? 7777));
  for (const name of worldNames) process.stdout.write(`${url}/#k=${name}\n`);
}
