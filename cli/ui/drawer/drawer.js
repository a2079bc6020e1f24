// The drawer: whatever is selected, always in the same order: title, facts, numbers, relations, history, raw.
// @ts-check
import { html, useEffect, useRef } from '../vendor/preact.js';
import { drawerWidth, narrow } from '../prefs.js';
import { route, selected, unselect } from '../route.js';
import { Shape } from '../view/glyph.js';
import { Grip } from '../view/part.js';
import { Copy, View } from '../view/states.js';
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
  return html`<aside class="drawer" aria-label="Details" style=${{ '--width': `${drawerWidth.value}px` }}><${Grip} label="Width of the details" at=${Number(drawerWidth.value)} least=${320} side=${-1} set=${(w) => { drawerWidth.value = w || '470'; }} /><${Inside} key=${`${sel.kind}:${sel.id}`} kind=${sel.kind} id=${sel.id} /></aside>`;
}

/** @param {{ kind: string, id: string }} props */
function Inside({ kind, id }) {
  const is = useDetail(kind, id);
  const Body = bodies[kind];
  const close = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (narrow()) close.current?.focus();
  }, []);
  return html`<div class="inside">
    <div class="closer"><span class="dim kind">${kind}</span> <code>${id}</code> <${Copy} text=${id} what="its id" /><span class="grow" /><button ref=${close} class="icon" onClick=${() => { unselect(); focus.table(); }} aria-label="Close details" title="Close (Esc)"><${Shape} of="cross" /></button></div>
    <${View} of=${is} again=${is.again}>${is.data ? html`<${Body} of=${is.data} id=${id} /><${Raw} of=${is.data} />` : null}<//></div>`;
}

function Raw({ of }) {
  return html`<details class="raw"><summary>Raw</summary><pre tabindex="0">${JSON.stringify(of, null, 2)}</pre></details>`;
}
