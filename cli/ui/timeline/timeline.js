// The timeline: names at the left, the canvas beside them, the ruler above; live while it follows.
// @ts-check
import { html, useEffect, useMemo, useRef, useState } from '../vendor/preact.js';
import { get } from '../api.js';
import { count, plural, span } from '../format.js';
import { gutterWidth, system, theme } from '../prefs.js';
import { patch, route, select, selected, unselect } from '../route.js';
import { instant, paused } from '../store.js';
import { unwatch } from '../stream.js';
import { Grip } from '../view/part.js';
import { View } from '../view/states.js';
import { Gutter, Rest, widthOf } from './gutter.js';
import { loader } from './load.js';
import { density } from './lod.js';
import { repaint } from './paint.js';
import { loop, makeScene, relay, usual } from './scene.js';
import { listenPointer } from './select.js';
import { keptSince } from './window.js';

/** Everything that the page around the canvas needs. */
export function useTimeline() {
  const [, turn] = useState(0);
  const t = useMemo(makeScene, []);
  const again = () => {
    t.dirty = true;
    turn((n) => n + 1);
  };
  const load = useMemo(() => loader(t, () => {
    relay(t);
    again();
  }), []);
  useEffect(() => {
    unwatch('timeline');
    const shown = () => load.load();
    const sorts = system.subscribe(() => load.load(true));
    document.addEventListener('visibilitychange', shown);
    const held = paused.subscribe(shown);
    return () => {
      document.removeEventListener('visibilitychange', shown);
      held();
      sorts();
      load.stop();
    };
  }, []);
  const api = useMemo(() => actions(t, load, again), []);
  useAddress(t, load, again);
  useSelection(t, again);
  return { t, load, again, ...api };
}

/** @param {any} t @param {any} load @param {() => void} again */
function actions(t, load, again) {
  let timer = 0;
  const write = () => {
    clearTimeout(timer);
    timer = Number(setTimeout(() => {
      const free = t.follow ? { from: null, to: null, w: t.length === usual() ? null : String(Math.round(t.length)) } : { from: t.view.from.toFixed(3), to: t.view.to.toFixed(3), w: null };
      t.written = JSON.stringify(free);
      patch({ ...free, open: t.asked ? [...t.open].join(',') || '-' : null });
    }, 350));
  };
  const look = (/** @type {{ from: number, to: number }} */ w) => {
    const wasAtEdge = t.follow && Math.abs(w.to - t.view.to) < 1e-6;
    t.view = w;
    t.plain = false;
    if (wasAtEdge) t.length = w.to - w.from;
    else t.follow = false;
    load.poke();
    again();
    write();
  };
  const live = () => {
    t.length = Math.min(600_000, t.view.to - t.view.from);
    t.plain = false;
    t.follow = true;
    load.load();
    again();
    write();
  };
  const fold = (/** @type {string} */ id, /** @type {boolean} */ open) => {
    t.asked = true;
    if (open) t.open.add(id);
    else t.open.delete(id);
    load.load(true);
    again();
    write();
  };
  return { look, live, fold };
}

/** Takes window, filter and open lanes from the address, unless they came from here. @param {any} t @param {any} load @param {() => void} again */
function useAddress(t, load, again) {
  const { from, to, w, f, open } = route.value.params;
  useEffect(() => {
    const said = JSON.stringify(from ? { from, to, w: null } : { from: null, to: null, w: w ?? null });
    if (said === t.written) return;
    if (from) {
      t.view = { from: Number(from), to: to ? Number(to) : instant() };
      t.follow = false;
    } else {
      t.plain = !w;
      t.length = w ? Number(w) : usual();
      t.follow = true;
    }
    load.load();
    again();
  }, [from, to, w]);
  useEffect(() => {
    if (open) {
      t.asked = true;
      t.open = new Set(open === '-' ? [] : open.split(','));
    }
    t.filter = f ?? '';
    load.load(true);
  }, [f]);
}

/** The selected span brings its cause and effects. @param {any} t @param {() => void} again */
function useSelection(t, again) {
  const sel = selected(route.value);
  const id = sel?.kind === 'span' ? sel.id : null;
  useEffect(() => {
    t.selected = id;
    t.detail = null;
    if (!id) t.critical = null;
    again();
    if (!id) return;
    get(`inspect/spans/${encodeURIComponent(id)}`).then((e) => {
      if (t.selected !== id) return;
      t.detail = e.data;
      again();
    }).catch(() => {});
  }, [id]);
}

/** @param {{ of: ReturnType<typeof useTimeline>, onArea: (a: any) => void }} props */
export function Timeline({ of, onArea }) {
  const { t, load, again, look, fold } = of;
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const body = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const top = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [tip, setTip] = useState(/** @type {any} */ (null));
  useEffect(() => loop(t, () => [body.current, top.current]), []);
  useEffect(() => {
    const dark = matchMedia('(prefers-color-scheme: dark)');
    const fresh = () => {
      repaint();
      again();
    };
    fresh();
    dark.addEventListener('change', fresh);
    return () => dark.removeEventListener('change', fresh);
  }, [theme.value]);
  useEffect(() => watchSize(box.current, body.current, t, load, again), []);
  useEffect(() => (body.current ? listenPointer(body.current, t, {
    moved: again, look, area: onArea,
    click: (hit) => (hit?.span ? select('span', hit.span[0]) : hit?.placed && !hit.placed.lane.spans && hit.placed.lane.children ? fold(hit.placed.lane.id, true) : clear(t, again)),
    hover: (hit, x, y) => {
      const id = hit?.span?.[0] ?? null;
      if (id !== t.hover) t.dirty = true;
      t.hover = id;
      setTip(id || hit?.placed.lane.buckets ? { hit, x, y } : null);
    },
  }) : undefined), []);
  const gone = keptSince(t.chunk, t.view.from);
  const words = t.chunk ? `${t.placed.length} lanes, ${span(t.view.to - t.view.from)} long; ${gone ? `${gone}; ` : ''}the panel below lists its spans` : 'Timeline';
  const gutter = widthOf(t, gutterWidth.value);
  const all = t.placed.length + t.left;
  return html`<div class="timeline" style=${{ '--gutter': `${gutter}px` }}><div class="corner dim"><span>${!t.chunk ? '' : t.left ? `${count(t.placed.length)} of ${plural(all, 'lane')}` : plural(all, 'lane')}</span><${Grip} label="Width of the names" at=${gutter} least=${90} side=${1} set=${(w) => { gutterWidth.value = w; }} /></div><canvas class="ruler" ref=${top} aria-hidden="true" />
    <div class="lanes" ref=${box} tabindex="-1">
      <${Gutter} t=${t} fold=${fold} /><${Rest} t=${t} />
      <div class="hold"><canvas ref=${body} role="img" aria-label=${words} /></div>
      ${tip ? html`<${Tip} of=${tip} t=${t} />` : null}
      ${t.chunk ? null : html`<div class="cover"><${View} of=${{ status: t.error ? 'error' : 'loading', error: t.error }} again=${load.load} /></div>`}
    </div></div>`;
}

/** @param {any} t @param {() => void} again */
function clear(t, again) {
  t.area = null;
  if (selected(route.peek())?.kind === 'span') unselect();
  patch({ area: null });
  again();
}

/** @param {HTMLElement | null} box @param {HTMLCanvasElement | null} canvas @param {any} t @param {any} load @param {() => void} again */
function watchSize(box, canvas, t, load, again) {
  if (!box || !canvas) return undefined;
  const read = () => {
    const width = canvas.parentElement?.clientWidth ?? 0;
    t.size = { width, height: box.clientHeight };
    canvas.style.width = `${width}px`;
    canvas.style.height = `${box.clientHeight}px`;
    if (!t.chunk) load.load();
    else load.poke();
    again();
  };
  const scroll = () => {
    t.scroll = box.scrollTop;
    again();
  };
  const seen = new ResizeObserver(read);
  seen.observe(box);
  if (canvas.parentElement) seen.observe(canvas.parentElement);
  box.addEventListener('scroll', scroll, { passive: true });
  return () => {
    seen.disconnect();
    box.removeEventListener('scroll', scroll);
  };
}

/** What is under the pointer, in words. @param {{ of: any, t: any }} props */
function Tip({ of: { hit, x, y }, t }) {
  const s = hit.span;
  const right = x > t.size.width - 240;
  const took = () => (s[2] === null ? `going for ${span(t.edge - t.chunk.from - s[1])}` : span(s[2] - s[1]));
  const at = t.view.from + (x / t.size.width) * (t.view.to - t.view.from);
  return html`<div class="tip" style=${{ top: `${y + t.scroll + 16}px`, right: right ? `${t.size.width - x + 8}px` : 'auto', left: right ? 'auto' : `calc(var(--gutter) + ${x + 12}px)` }}>
    ${s ? html`<b>${t.chunk.names[s[4]]}</b> <span class="dim">${t.chunk.kinds[s[3]]}</span> ${took()}${s[5] ? '' : html` <span class="tone-failed">failed</span>`}` : density(hit.placed.lane, t.chunk, at)}<br /><span class="dim">${hit.placed.lane.name}</span></div>`;
}
