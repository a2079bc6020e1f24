// Every actor: what it is in, what it does, how deep its mailbox is, whom it waits for.
// @ts-check
import { html, useMemo, useState } from '../vendor/preact.js';
import { assign, mentionsSystem, parse, withSystem } from '../filter.js';
import { count } from '../format.js';
import { useKeys } from '../keys.js';
import { system } from '../prefs.js';
import { chosen, patch, route, select, sortBy } from '../route.js';
import { useView } from '../stream.js';
import { columnsFor, groupColumns, rowTone } from '../view/actorrow.js';
import { Bar, Choice, FilterBox } from '../view/filterbox.js';
import { Toggle } from '../view/part.js';
import { Empty, View } from '../view/states.js';
import { Table } from '../view/table.js';
import { flatten } from '../view/tree.js';

export function Actors() {
  const { params } = route.value;
  const filter = params.f && !parse(params.f).error ? params.f : '';
  const group = params.g ?? '';
  const is = useView({ view: 'actors', filter: withSystem(filter, system.value === 'on') || undefined, group: group || undefined });
  const tree = params.tree === '1' && !group;
  useKeys([
    { keys: ['t'], does: 'Tree or list', run: () => patch({ tree: tree ? null : '1', g: null }) },
    { keys: ['x'], does: 'Only failed ones', run: () => patch({ f: assign(filter, 'state', /state:failed/.test(filter) ? '' : 'failed') }) },
  ], [tree, filter]);
  const rows = useMemo(() => (is.data?.rows ? [...is.data.rows.values()] : []), [is.data]);
  const total = is.meta?.total ?? rows.length;
  return html`<${Bar} title="Actors" note=${is.data ? `${group ? `${count(is.data.groups?.length ?? 0)} groups` : count(rows.length)}${!group && total > rows.length ? ` of ${count(total)}` : ''}` : ''}>
      <${FilterBox} hint="state:failed job:j7 node:n2 mailbox>100 age>10s -type:Relay" wrong=${is.wrong} />
      <${Toggle} on=${tree} onClick=${() => patch({ tree: tree ? null : '1', g: null })} title="Supervision tree (t)">Tree<//>
      <${Choice} label="Group" at=${group} of=${[['', 'none'], ['type', 'type'], ['node', 'node'], ['job', 'job']]} set=${(v) => patch({ g: v, tree: null, sort: null })} />
    <//>
    <${View} of=${is} isEmpty=${!rows.length && !(group && is.data?.groups?.length)} empty=${html`<${Nothing} filter=${filter} />`}>
      ${group ? html`<${Groups} of=${is.data?.groups ?? []} by=${group} filter=${filter} />` : tree ? html`<${Tree} rows=${rows} total=${total} />` : html`<${List} rows=${rows} total=${total} />`}
    <//>`;
}

/** @param {{ rows: any[], total: number }} props */
function List({ rows, total }) {
  const sort = route.value.params.sort ?? 'state';
  return html`<${Table} label="Actors" columns=${columnsFor(rows)} rows=${rows} total=${total} sort=${sort} onSort=${sortBy}
    selected=${chosen('actor')} onOpen=${(r) => select('actor', r.id)} tone=${rowTone} />`;
}

/** @param {{ rows: any[], total: number }} props */
function Tree({ rows, total }) {
  const [folded, setFolded] = useState(() => new Set());
  const flat = useMemo(() => flatten(rows, folded), [rows, folded]);
  const fold = (row, /** @type {boolean} */ open) => setFolded((old) => {
    const next = new Set(old);
    if (open) next.delete(row.id);
    else next.add(row.id);
    return next;
  });
  const tree = {
    level: (r) => flat.level.get(r.id) ?? 0,
    open: (r) => (flat.parents.has(r.id) ? !folded.has(r.id) : null),
    fold,
  };
  return html`<${Table} label="Actors by supervisor" columns=${columnsFor(flat.rows)} rows=${flat.rows} total=${total} tree=${tree} selected=${chosen('actor')}
    onOpen=${(r) => select('actor', r.id)} tone=${rowTone} />`;
}

/** @param {{ of: any[], by: string, filter: string }} props */
function Groups({ of, by, filter }) {
  const open = (g) => patch({ f: assign(filter, by, g.key), g: null, sort: null }, false);
  return html`<${Table} label=${`Actors by ${by}`} columns=${groupColumns} rows=${of} keyOf=${(g) => g.key} sort=${route.value.params.sort ?? '-count'}
    onSort=${sortBy} onOpen=${open} tone=${(g) => (g.failed ? 'is-failed' : '')} />`;
}

/** @param {{ filter: string }} props */
function Nothing({ filter }) {
  if (!filter) return html`<${Empty} title="No actors run" why="They appear here as soon as a job or a run starts them." run />`;
  return html`<${Empty} title="No actor matches" why=${html`Nothing holds for <code>${filter}</code>.${mentionsSystem(filter) || system.value === 'on' ? '' : ' The runtime\'s own actors are hidden; sys shows them.'}`}>
    <p><button class="button" onClick=${() => patch({ f: null })}>Clear the filter</button></p><//>`;
}
