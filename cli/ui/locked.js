// The place to paste a key, when the cookie is missing or worn out.
// @ts-check
import { html, useState } from './vendor/preact.js';
import { words } from './api.js';
import { conn } from './store.js';
import { Command } from './view/states.js';

/** @param {{ enter: (key: string) => Promise<void> }} props */
export function Locked({ enter }) {
  const [why, setWhy] = useState('');
  const [key, setKey] = useState('');
  const submit = (e) => {
    e.preventDefault();
    const text = key.trim();
    const bare = /k=([^&\s]+)/.exec(text)?.[1] ?? text;
    setWhy('');
    enter(decodeURIComponent(bare)).catch((error) => setWhy(words(error)));
  };
  return html`<div class="empty locked"><h1>Locked</h1>
    <p>This page needs the key that the daemon printed. The link it prints holds it already:</p>
    <${Command} text="odeon ui" />
    <form onSubmit=${submit}><label for="key">Key or link</label>
      <input id="key" type="password" autocomplete="off" spellcheck="false" value=${key} onInput=${(e) => setKey(e.target.value)} />
      <button class="button" disabled=${!key.trim()}>Unlock</button></form>
    ${why || conn.value.why ? html`<p role="alert" class="tone-failed">${why || conn.value.why}</p>` : null}</div>`;
}
