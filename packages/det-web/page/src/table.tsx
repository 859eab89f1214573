// A table of any number of rows: only those in sight are in the document. Sort, columns and filter are in the address.
import { useSignal } from "@preact/signals";
import type { ComponentChildren, VNode } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { go, param, setParams } from "./address";
import { saveCsv } from "./export";
import { filter, sorted, type Wanted } from "./filter";
import { alike, num, show, type Value } from "./format";
import { useKeys } from "./keys";
import type { Rows } from "./live";
import { chosen, choose, clearChosen } from "./chosen";

export interface Column {
  name: string;
  title?: string;
  width?: number;
  /** How a value is written; numbers and texts write themselves. */
  cell?: (i: number) => ComponentChildren;
  number?: boolean;
  hidden?: boolean;
}

interface Props {
  name: string;
  rows: Rows;
  columns: Column[];
  /** What a word of the filter is looked for in. */
  searched: string[];
  sort: string;
  open: (id: number) => string;
  /** Which rows there are to filter. */
  among?: Wanted;
  /** What may be done with chosen rows. */
  choosing?: { title: string; act: (ids: number[]) => void };
  /** What else may be done with chosen rows. */
  acts?: { title: string; act: (ids: number[]) => void }[];
  tools?: ComponentChildren;
  onShown?: (rows: number[]) => void;
}

const HEIGHT = 29; // of a row, in pixels; app.css has the same
const SPARE = 12; // rows made beyond what is seen, so that a fast scroll finds them there

export function Table(props: Props) {
  const { rows, columns } = props;
  const box = useRef<HTMLDivElement>(null);
  const field = useRef<HTMLInputElement>(null);
  const first = useSignal(0);
  const seen = useSignal(30);
  const cursor = useSignal(-1);
  const [typed, setTyped] = useState(param("q"));
  const asked = useRef(typed);
  const by = param("sort", props.sort);
  const [key, down] = [by.replace(/^-/, ""), by.startsWith("-")];
  const known = new Map(columns.map((column) => [column.name, column]));
  const names = param("cols") ? param("cols").split(",") : columns.filter((c) => !c.hidden).map((c) => c.name);
  const pinned = (param("pin") || columns[0]!.name).split(",").filter((name) => names.includes(name));
  const ordered = [...pinned, ...names.filter((name) => !pinned.includes(name))].filter((name) => known.has(name));

  const found = useMemo(() => filter(typed, (name) => rows.columns[name], props.searched), [rows, typed]);
  const wanted = useMemo(() => {
    const all = [];
    for (let i = 0; i < rows.n; i++) if (found.wanted(i) && (!props.among || props.among(i))) all.push(i);
    return all;
  }, [rows, found, props.among]);
  const order = useMemo(() => sorted(wanted, rows.columns[key], down), [wanted, key, down]);
  useEffect(() => props.onShown?.(wanted), [wanted]);
  useEffect(() => {
    const timer = setTimeout(() => {
      asked.current = typed;
      if (typed !== param("q")) setParams({ q: typed });
    }, 250);
    return () => clearTimeout(timer);
  }, [typed]);
  // A view, or going back, has a filter of its own.
  useEffect(() => {
    if (param("q") !== asked.current) setTyped((asked.current = param("q")));
  }, [param("q")]);

  const ids = rows.columns.id as number[];
  const onScroll = () => {
    const at = Math.max(0, Math.floor(box.current!.scrollTop / HEIGHT) - SPARE);
    const next = at - (at % SPARE); // in steps, so that most frames of a scroll change nothing
    if (next !== first.value) first.value = next;
  };
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => (seen.value = Math.ceil(entry!.contentRect.height / HEIGHT)));
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (cursor.value >= order.length) cursor.value = order.length - 1;
    if (box.current && first.value * HEIGHT > order.length * HEIGHT) onScroll();
  }, [order]);

  const step = (by: number) => {
    cursor.value = Math.max(0, Math.min(order.length - 1, cursor.value + by));
    const [top, view] = [cursor.value * HEIGHT, box.current!];
    if (top < view.scrollTop) view.scrollTop = top;
    else if (top + 2 * HEIGHT > view.scrollTop + view.clientHeight) view.scrollTop = top + 2 * HEIGHT - view.clientHeight;
  };
  const current = () => (cursor.value >= 0 ? ids[order[cursor.value]!] : undefined);
  const act = () => chosen.value.size && props.choosing?.act([...chosen.value]);
  useKeys(
    {
      j: () => step(1),
      k: () => step(-1),
      ArrowDown: () => step(1),
      ArrowUp: () => step(-1),
      Enter: () => current() !== undefined && go(props.open(current()!)),
      x: () => current() !== undefined && choose(current()!),
      c: act,
      "/": () => field.current!.focus(),
      Escape: () => (clearChosen(), setParams({ brush: null })),
    },
    [order, props.choosing?.title],
  );

  const sortBy = (name: string) => setParams({ sort: key !== name ? name : down ? null : `-${name}` });
  const save = () => saveCsv(props.name, [ordered, ...order.map((i) => ordered.map((name) => rows.columns[name]?.[i]))]);
  const left = new Map<string, number>();
  let offset = props.choosing ? 32 : 0;
  for (const name of pinned) {
    left.set(name, offset);
    offset += widthOf(known.get(name)!);
  }
  const stuck = (name: string) => (left.has(name) ? { className: "pinned", style: { left: `${left.get(name)}px` } } : {});
  const right = new Set(ordered.filter((name) => known.get(name)!.number ?? (!known.get(name)!.cell && numbers(rows.columns[name]))));
  const from = first.value;
  const shown = order.slice(from, from + seen.value + 3 * SPARE);
  // A row is made once for as long as nothing in it changes: a scroll makes those that come into sight, and no others.
  const made = useMemo(() => new Map<number, VNode>(), [order, columns, ordered.join(), pinned.join(), cursor.value, chosen.value]);
  const rowAt = (i: number, at: number): VNode => {
    const known = made.get(i) ?? row(i, at);
    made.set(i, known);
    return known;
  };
  const row = (i: number, at: number) => (
    <tr
      key={ids[i]}
      aria-rowindex={at + 2}
      class={at === cursor.value ? "cursor" : undefined}
      onClick={(event) => opened(event, props.open(ids[i]!), () => (cursor.value = at))}
    >
      {props.choosing && (
        <td class="pinned">
          <input type="checkbox" aria-label={`choose ${ids[i]}`} checked={chosen.value.has(ids[i]!)} onChange={() => choose(ids[i]!)} />
        </td>
      )}
      {ordered.map((name) => {
        const column = known.get(name)!;
        const value = rows.columns[name]?.[i] as Value;
        return (
          <td key={name} {...stuck(name)} {...(right.has(name) ? { className: left.has(name) ? "pinned number" : "number" } : {})}>
            {column.cell ? column.cell(i) : typeof value === "number" ? alike(rows.columns[name]!)(value) : show(value)}
          </td>
        );
      })}
      <td />
    </tr>
  );
  return (
    <div class="tabled">
      <div class="tools">
        <input
          ref={field}
          type="search"
          value={typed}
          placeholder="filter: words, name:value, lr<0.01"
          aria-label="filter"
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
        <span class="counted" role="status">
          {found.problem ?? (order.length === rows.n ? num(rows.n) : `${num(order.length)} of ${num(rows.n)}`)}
        </span>
        {props.tools}
        {props.choosing && (
          <button disabled={!chosen.value.size} onClick={act}>
            {props.choosing.title}
            {chosen.value.size ? ` ${chosen.value.size}` : ""}
          </button>
        )}
        {props.acts?.map(({ title, act: does }) => (
          <button key={title} disabled={!chosen.value.size} onClick={() => does([...chosen.value])}>
            {title}
          </button>
        ))}
        <Views />
        <Chooser columns={columns} names={ordered} pinned={pinned} />
        <button onClick={save}>CSV</button>
      </div>
      <div class="rows" ref={box} onScroll={onScroll} tabIndex={0} aria-label={`${props.name}, rows`} role="group">
        <table aria-rowcount={order.length + 1}>
          <colgroup>
            {props.choosing && <col style={{ width: "32px" }} />}
            {ordered.map((name) => (
              <col key={name} style={{ width: `${widthOf(known.get(name)!)}px` }} />
            ))}
            <col />
          </colgroup>
          <thead>
            <tr aria-rowindex={1}>
              {props.choosing && <th class="pinned" aria-label="chosen" />}
              {ordered.map((name) => (
                <th key={name} scope="col" aria-sort={key !== name ? "none" : down ? "descending" : "ascending"} {...stuck(name)}>
                  <button class={right.has(name) ? "number" : undefined} onClick={() => sortBy(name)} title={name}>
                    {known.get(name)!.title ?? name}
                    {key === name ? (down ? " ↓" : " ↑") : ""}
                  </button>
                </th>
              ))}
              <th />
            </tr>
          </thead>
          <tbody>
            <tr class="space" aria-hidden style={{ height: `${from * HEIGHT}px` }} />
            {shown.map((i, k) => rowAt(i, from + k))}
            <tr class="space" aria-hidden style={{ height: `${Math.max(0, order.length - from - shown.length) * HEIGHT}px` }} />
          </tbody>
        </table>
      </div>
    </div>
  );
}

/** A click anywhere on a row opens it, unless it was on something that does more, or selected text. */
function opened(event: MouseEvent, to: string, mark: () => void): void {
  if ((event.target as HTMLElement).closest("a, button, input") || getSelection()?.toString()) return;
  mark();
  go(to);
}

const widthOf = (column: Column) => column.width ?? Math.min(220, Math.max(96, 9 * (column.title ?? column.name).length + 28));

const numbers = (column?: Value[]) => !!column && column.some((value) => typeof value === "number") && column.every((value) => value == null || typeof value === "number");

const VIEWS = "det-views";
const kept = (): Record<string, string> => {
  try {
    return JSON.parse(localStorage.getItem(VIEWS) ?? "{}");
  } catch {
    return {};
  }
};

/** Views by name, kept in this browser: the filter, order, columns and all else that the address has. */
function Views() {
  const [views, set] = useState(kept);
  const [name, setName] = useState("");
  const save = (next: Record<string, string>) => (localStorage.setItem(VIEWS, JSON.stringify(next)), set(next));
  const add = (event: Event) => {
    event.preventDefault();
    if (name) save({ ...kept(), [name]: location.search });
    setName("");
  };
  const forget = (each: string) => {
    const { [each]: _, ...others } = kept();
    save(others);
  };
  return (
    <details class="menu">
      <summary role="button">Views</summary>
      <div>
        {Object.entries(views).map(([each, search]) => (
          <div key={each}>
            <a href={search || "?"} onClick={(event) => (event.preventDefault(), go(location.pathname + search))}>
              {each}
            </a>
            <button aria-label={`forget ${each}`} onClick={() => forget(each)}>
              ×
            </button>
          </div>
        ))}
        <form onSubmit={add}>
          <input type="text" value={name} aria-label="name of this view" placeholder="name of this view" onInput={(event) => setName(event.currentTarget.value)} />{" "}
          <button disabled={!name}>Keep</button>
        </form>
      </div>
    </details>
  );
}

/** Which columns are there, and which stay in sight when one scrolls sideways. */
function Chooser({ columns, names, pinned }: { columns: Column[]; names: string[]; pinned: string[] }) {
  const toggle = (list: string[], name: string) => (list.includes(name) ? list.filter((each) => each !== name) : [...list, name]);
  return (
    <details class="menu">
      <summary role="button">Columns</summary>
      <div>
        {columns.map(({ name, title }) => (
          <div key={name}>
            <label>
              <input type="checkbox" checked={names.includes(name)} onChange={() => setParams({ cols: toggle(names, name).join(",") })} />
              {title ?? name}
            </label>
            <label>
              <input type="checkbox" checked={pinned.includes(name)} onChange={() => setParams({ pin: toggle(pinned, name).join(",") })} />
              pin
            </label>
          </div>
        ))}
        <button onClick={() => setParams({ cols: null, pin: null })}>As at first</button>
      </div>
    </details>
  );
}
