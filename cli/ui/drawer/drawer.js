// The drawer: whatever is selected, always in the same order: title, facts, numbers, relations, history, raw.
// @ts-check
import { html, useEffect, useRef } from '../vendor/preact.js';
import { drawerWidth } from '../prefs.js';
import { route, selected, unselect } from '../route.js';
import { Shape } from '../view/glyph.js';
import { View } from '../view/states.js';
import { focus } from '../view/table.js';
import { ActorBody } from './actor.js';
import { DeviceBody } from './device.js';
import { JobBody } from './job.js';
import { NodeBody } from './node.js';
import { ProcessBody } from './process.js';
import { SpanBody } from './span.js';
import { TransferBody } from './transfer.js';
import { known, useDetail } from './detail.js';

const bodies = { actor: ActorBody, node: NodeBody, device: DeviceBody, job: JobBody, process: ProcessBody, span: SpanBody, transfer: TransferBody };

export function Drawer() {
  const sel = selected(route.value);
  if (!sel || !known(sel.kind)) return null;
  return html`<aside class="drawer" aria-label="Details" style=${{ '--width': `${drawerWidth.value}px` }}><${Grip} /><${Inside} key=${`${sel.kind}:${sel.id}`} kind=${sel.kind} id=${sel.id} /></aside>`;
}

/** @param {{ kind: string, id: string }} props */
function Inside({ kind, id }) {
  const is = useDetail(kind, id);
  const Body = bodies[kind];
  const close = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (matchMedia('(max-width: 760px)').matches) close.current?.focus();
  }, []);
  return html`<div class="inside">
    <div class="closer"><span class="dim kind">${kind}</span><button ref=${close} class="icon" onClick=${() => { unselect(); focus.table(); }} aria-label="Close details" title="Close (Esc)"><${Shape} of="cross" /></button></div>
    <${View} of=${is} again=${is.again}>${is.data ? html`<${Body} of=${is.data} id=${id} /><${Raw} of=${is.data} />` : null}<//></div>`;
}

/** @param {{ of: any }} props */
function Raw({ of }) {
  return html`<details class="raw"><summary>Raw</summary><pre tabindex="0">${JSON.stringify(of, null, 2)}</pre></details>`;
}

/** The edge that is dragged, or moved with arrow keys. */
function Grip() {
  const set = (/** @type {number} */ w) => {
    drawerWidth.value = String(Math.round(Math.max(320, Math.min(innerWidth * 0.7, w))));
  };
  const drag = (e) => {
    e.currentTarget.setPointerCapture(e.pointerId);
    e.currentTarget.onpointermove = (/** @type {PointerEvent} */ m) => set(innerWidth - m.clientX);
  };
  const drop = (e) => {
    e.currentTarget.onpointermove = null;
  };
  const key = (/** @type {KeyboardEvent} */ e) => {
    const step = { ArrowLeft: 24, ArrowRight: -24 }[e.key];
    if (!step) return;
    e.preventDefault();
    e.stopPropagation();
    set(Number(drawerWidth.peek()) + step);
  };
  return html`<div class="grip" role="separator" aria-orientation="vertical" aria-label="Width of the details" tabindex="0" aria-valuenow=${drawerWidth.value} aria-valuemin="320" aria-valuemax="2000"
    onPointerDown=${drag} onPointerUp=${drop} onKeyDown=${key} />`;
}

