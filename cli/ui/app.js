// The start of the page: a session, then the frame around the page that the address names.
// @ts-check
import { html, render, useEffect, useState } from './vendor/preact.js';
import { explain, get, post, words } from './api.js';
import { Announcer, Footer, Header, Nav, Noted, Replay, Restarted, titleOf } from './frame.js';
import { globalKeys } from './global.js';
import { Help } from './help.js';
import { listenKeys } from './keys.js';
import { Locked } from './locked.js';
import { Palette } from './palette.js';
import { applyTheme } from './prefs.js';
import { href, listen, parse, route, selected } from './route.js';
import { about, conn, head, noted, restarted, setPhase, stale, startTick } from './store.js';
import { listenVisibility, retry } from './stream.js';
import { Drawer } from './drawer/drawer.js';
import { Partial } from './view/states.js';
import { Now } from './page/now.js';
import { Problems } from './page/problems.js';
import { Cluster } from './page/cluster.js';
import { Actors } from './page/actors.js';
import { Jobs } from './page/jobs.js';
import { Runs } from './page/runs.js';
import { TimelinePage } from './page/timeline.js';
import { Transfers } from './page/transfers.js';
import { Events } from './page/events.js';

const views = { now: Now, problems: Problems, cluster: Cluster, actors: Actors, jobs: Jobs, runs: Runs, timeline: TimelinePage, transfers: Transfers, events: Events };

function App() {
  const [over, setOver] = useState(/** @type {string | null} */ (null));
  useEffect(() => listenKeys(globalKeys(setOver)), []);
  const { page } = route.value;
  const open = selected(route.value) !== null;
  const errors = head.value?.problems.error ?? 0;
  const cluster = head.value?.name ?? 'Odeon';
  useEffect(() => {
    document.title = `${errors ? `(${errors}) ` : ''}${titleOf(page)} - ${cluster}`;
  }, [page, errors, cluster]);
  const live = conn.value.phase === 'live';
  useEffect(() => {
    if (restarted.value !== null || (live && !about.peek())) describe().catch(() => {});
  }, [restarted.value, live]);
  const close = () => setOver(null);
  return html`<div class="app ${stale.value ? 'is-stale' : ''} ${open ? 'has-drawer' : ''}">
    <${Header} openPalette=${() => setOver('palette')} openHelp=${() => setOver('help')} />
    <${Nav} />
    <main id="main" tabindex="-1"><${Replay} /><${Noted} /><${Restarted} /><${Partial} />
      ${conn.value.phase === 'locked' ? html`<${Locked} enter=${enter} />` : html`<${views[page]} key=${page} />`}</main>
    <${Drawer} />
    <${Footer} />
    <${Announcer} />
    ${over === 'palette' ? html`<${Palette} close=${close} open=${setOver} />` : null}
    ${over === 'help' ? html`<${Help} close=${close} />` : null}
  </div>`;
}

/** Trades a key for the cookie that all other calls go with. @param {string} key */
async function enter(key) {
  await post('session', { key });
  await describe();
  setPhase('connecting');
  retry();
}

async function describe() {
  const told = await get('inspect/about');
  const data = told.data ?? told;
  about.value = { ...data, first: about.peek()?.first ?? data.version };
}

/** Takes the key out of the address before anything else sees it. @param {string} instead what stands there then */
function takeKey(instead) {
  const key = /^#(?:.*[?&])?k=([^&]+)/.exec(location.hash)?.[1];
  if (key) history.replaceState(null, '', `${location.pathname}${instead}`);
  return key ? decodeURIComponent(key) : null;
}

/** A link that is pasted into this page: its key opens a locked one, and one that goes on says when the key is wrong. */
function another() {
  const { page, params } = route.peek();
  const key = takeKey(href(page, params));
  if (!key) return;
  enter(key).catch((error) => {
    const why = words(error);
    if (conn.peek().phase === 'locked') setPhase('locked', { why });
    else noted.value = `The key of that link does not open this page, which goes on with the one it has: ${why}`;
  });
}

async function begin() {
  const key = takeKey('#/now');
  route.value = parse(location.hash);
  try {
    if (key) await post('session', { key });
    await describe();
  } catch (error) {
    if (explain(error).kind === 'unauthorized') setPhase('locked', key ? { why: words(error) } : {});
  }
  listen(another);
  listenVisibility();
  startTick();
  applyTheme();
  const root = document.getElementById('root');
  if (root) render(html`<${App} />`, root);
}

begin();
