// The wait-for chain in one sentence.
// @ts-check
import { age } from './format.js';
/** @typedef {import('./types').Hop} Hop */

const verbs = { ask: 'asks', room: 'wants room in the mailbox of', place: 'waits for a place at' };

/**
 * The parts of the sentence: words and subjects, so that subjects become links.
 * Each hop names whom is waited for, for what, and since when; a circle closes on the first.
 * @param {{ kind: string, id: string, name: string }} self @param {Hop[]} chain @param {boolean} circle @param {number} now @param {boolean} [deadlock]
 * @returns {(string | { kind: string, id: string, name: string })[]}
 */
export function sentence(self, chain, circle, now, deadlock = false) {
  if (!chain.length) return [];
  /** @type {(string | import('./types').Subject)[]} */
  const parts = [self];
  chain.forEach((hop, i) => {
    const verb = verbs[hop.how] ?? hop.how;
    parts.push(`${i ? ', which ' : ' '}${verb} `);
    parts.push(hop.subject);
    parts.push(`${hop.message ? ` for ${hop.message}` : ''} (${age(Math.max(0, now - hop.since))})`);
  });
  parts.push(deadlock ? ': they wait for each other and none can go on.' : circle ? ': there it comes back to where it was.' : '.');
  return parts;
}
