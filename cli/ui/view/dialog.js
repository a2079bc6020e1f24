// A modal dialog of the browser's own: it holds the focus and gives it back.
// @ts-check
import { html, useLayoutEffect, useRef } from '../vendor/preact.js';

/** @param {{ label: string, close: () => void, kind?: string, children?: any }} props */
export function Dialog({ label, close, kind = '', children }) {
  const box = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useLayoutEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    box.current?.showModal();
    return () => before?.focus?.();
  }, []);
  const outside = (e) => {
    if (e.target === box.current) close();
  };
  return html`<dialog ref=${box} class=${kind} aria-label=${label} onClose=${close} onClick=${outside}><div class="inside">${children}</div></dialog>`;
}
