// A supervision tree as rows: who stands under whom, in the order of names, folded where asked.
// @ts-check
/** @typedef {import('../types').ActorRow} ActorRow */

/**
 * A row whose parent is not shown stands at the root. A circle among parents is cut.
 * @param {ActorRow[]} rows @param {Set<string>} folded
 * @returns {{ rows: ActorRow[], level: Map<string, number>, parents: Set<string> }}
 */
export function flatten(rows, folded) {
  const here = new Set(rows.map((r) => r.id));
  /** @type {Map<string, ActorRow[]>} */
  const under = new Map();
  const roots = [];
  for (const row of rows) {
    if (row.parent === null || !here.has(row.parent) || row.parent === row.id) roots.push(row);
    else if (under.has(row.parent)) under.get(row.parent)?.push(row);
    else under.set(row.parent, [row]);
  }
  return walk(roots, under, folded);
}

/** @param {ActorRow[]} roots @param {Map<string, ActorRow[]>} under @param {Set<string>} folded */
function walk(roots, under, folded) {
  const level = new Map();
  /** @type {ActorRow[]} */
  const out = [];
  const stack = [...roots].sort(backwards).map((row) => ({ row, depth: 0 }));
  while (stack.length) {
    const { row, depth } = /** @type {{ row: ActorRow, depth: number }} */ (stack.pop());
    if (level.has(row.id)) continue;
    level.set(row.id, depth);
    out.push(row);
    if (folded.has(row.id)) continue;
    for (const child of [...(under.get(row.id) ?? [])].sort(backwards)) stack.push({ row: child, depth: depth + 1 });
  }
  return { rows: out, level, parents: new Set(under.keys()) };
}

const label = (/** @type {ActorRow} */ r) => r.name ?? r.type;
const backwards = (/** @type {ActorRow} */ a, /** @type {ActorRow} */ b) => label(b).localeCompare(label(a), 'en', { numeric: true });
