// What changes while one looks. Only ids travel by themselves; who shows such a thing asks for what is new since its version.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, Refused, unreachable } from "./api";
import type { Value } from "./format";

export interface Change {
  kind: "experiments" | "trials";
  experiment?: number;
  /** Those that changed; `null` where they are too many to name. */
  ids: number[] | null;
}

const AGAIN_MS = 1000; // after a question that did not reach the server

type Listener = (change: Change | null) => void;
const listeners = new Set<Listener>();
let source: EventSource | null = null;

function tell(change: Change | null): void {
  for (const listener of [...listeners]) listener(change);
}

/** One connection a page, and none while it is hidden: a browser has six for a host, and a hidden page costs nothing. */
function connect(): void {
  if (document.hidden) {
    source?.close();
    source = null;
  } else if (!source) {
    const again = (source = new EventSource("/api/v1/events"));
    again.onopen = () => {
      unreachable.value = false;
      tell(null); // what was missed meanwhile is asked for
    };
    again.onerror = () => {
      void get("/about").catch(() => {}); // which tells a server that is gone from one that refuses
      if (again.readyState !== EventSource.CLOSED) return; // it tries again by itself
      source = null;
      setTimeout(connect, 2000);
    };
    for (const kind of ["experiments", "trials"] as const)
      again.addEventListener(kind, (event) => tell({ kind, ...JSON.parse((event as MessageEvent).data) }));
  }
}

export function startLive(): void {
  document.addEventListener("visibilitychange", connect);
  connect();
}

/** Whether a change is one of an experiment's own row or of its trials. */
export const ofExperiment = (id: number) => (change: Change) =>
  change.kind === "trials" ? change.experiment === id : !change.ids || change.ids.includes(id);

/** Whether a change is one of some trials. */
export const ofTrials = (ids: number[]) => (change: Change) =>
  change.kind === "trials" && (!change.ids || ids.some((id) => change.ids!.includes(id)));

const TOGETHER_MS = 100; // how long an answer waits for others to the same change

let asked = 0;
let shown: number | undefined;
const come: (() => void)[] = [];

function showAll(): void {
  clearTimeout(shown);
  shown = undefined;
  for (const show of come.splice(0)) show();
}

/** What is asked for anew is shown together: to draw once costs a fraction of drawing after each answer. */
async function together<T>(load: Promise<T>, show: (value: T) => void): Promise<T> {
  asked++;
  try {
    const value = await load;
    come.push(() => show(value));
    shown ??= setTimeout(showAll, TOGETHER_MS);
    return value;
  } finally {
    if (--asked === 0) showAll();
  }
}

export interface Answer<T> {
  value?: T;
  error?: Error;
  /** Asks again now. */
  again: () => void;
}

/** Calls `load` now, and again whenever such a change comes; never twice at the same time, so a slow server is not piled up on. */
export function useLive<T>(key: string | null, load: (before: T | undefined) => Promise<T>, when?: (c: Change) => boolean): Answer<T> {
  const [answer, set] = useState<{ key: string | null; value?: T; error?: Error }>({ key });
  const again = useRef(() => {});
  useEffect(() => {
    if (key == null) return;
    let gone = false;
    let busy = false;
    let due = false;
    let before: T | undefined;
    const ask = async () => {
      due = true;
      if (busy) return;
      busy = true;
      while (due && !gone) {
        due = false;
        try {
          const show = (value: T) => !gone && set({ key, value });
          if (before === undefined) show((before = await load(before)));
          else before = await together(load(before), show);
        } catch (error) {
          if (gone) break;
          showAll(); // what came before it
          set({ key, value: before, error: error as Error });
          // The connection of changes may be there all the while, and then nobody else asks again.
          if (!(error instanceof Refused)) setTimeout(() => !gone && void ask(), AGAIN_MS);
        }
      }
      busy = false;
    };
    again.current = ask;
    void ask();
    let missed = true; // the first `null` says that the connection is there, which the first answer knows
    const listener: Listener = (change) => {
      if (change ? when?.(change) : when && !missed) void ask();
      if (!change) missed = false;
    };
    listeners.add(listener);
    return () => {
      gone = true;
      listeners.delete(listener);
    };
  }, [key]);
  // What was there stays until the new is: nothing jumps. But another thing's value is not shown under this one's name.
  const mine = answer.key === key;
  return { value: mine ? answer.value : undefined, error: mine ? answer.error : undefined, again: () => again.current() };
}

/** What an address answers, kept up to date. */
export function useGet<T>(address: string | null, when?: (change: Change) => boolean): Answer<T> {
  return useLive<T>(address, () => get<T>(address!), when);
}

/** Asks again from time to time while the page is seen: what no change tells of, or what costs the server too much at each change. */
export function useEvery(ms: number, answer: Answer<unknown>): void {
  useEffect(() => {
    const timer = setInterval(() => document.hidden || answer.again(), ms);
    return () => clearInterval(timer);
  }, []);
}

/** Rows in columns, as the server sends them: only those that changed travel. */
export interface Rows {
  version: string;
  n: number;
  columns: Record<string, Value[]>;
  at: Map<number, number>;
  /** The names of the columns that are hyperparameters, as `columns` has them. */
  hparams: string[];
}

interface Sent {
  version: string;
  whole?: boolean;
  gone?: number[];
  columns: Record<string, Value[]>;
  hparams?: Record<string, Value[]>;
}

/** A hyperparameter's column: its own name, unless a column of every trial is called so. */
const named = (name: string, columns: Record<string, unknown>) => (name in columns ? `hparams.${name}` : name);

/** Puts what changed into what was there. A column in which something changed is a new array, so that whoever drew it sees it. */
export function merge(before: Rows | undefined, sent: Sent): Rows {
  const hparams = Object.entries(sent.hparams ?? {}).map(([name, column]) => [named(name, sent.columns), column] as const);
  const fresh: Record<string, Value[]> = { ...sent.columns, ...Object.fromEntries(hparams) };
  const ids = sent.columns.id as number[];
  if (!before || sent.whole) {
    const at = new Map(ids.map((id, i) => [id, i]));
    return { version: sent.version, n: ids.length, columns: fresh, at, hparams: hparams.map(([name]) => name) };
  }
  if (!ids.length && !sent.gone?.length) return { ...before, version: sent.version };
  const gone = new Set(sent.gone ?? []);
  const old = before.columns.id as number[];
  const kept = gone.size ? old.flatMap((id, i) => (gone.has(id) ? [] : [i])) : null;
  const columns: Record<string, Value[]> = {};
  const names = new Set([...Object.keys(before.columns), ...Object.keys(fresh)]);
  for (const name of names) {
    const column = before.columns[name] ?? new Array(before.n).fill(null);
    columns[name] = kept ? kept.map((i) => column[i]) : column;
  }
  const at = kept ? new Map(columns.id!.map((id, i) => [id as number, i])) : new Map(before.at);
  ids.forEach((id, k) => {
    let i = at.get(id);
    if (i === undefined) at.set(id, (i = at.size));
    for (const name of names) {
      const value = fresh[name] ? fresh[name][k] : null;
      if (same(columns[name]![i], value)) continue;
      if (columns[name] === before.columns[name]) columns[name] = columns[name]!.slice();
      columns[name]![i] = value;
    }
  });
  const known = [...new Set([...before.hparams, ...hparams.map(([name]) => name)])];
  return { version: sent.version, n: at.size, columns, at, hparams: known };
}

const same = (a: Value, b: Value) => a === b || (typeof a === "object" && JSON.stringify(a) === JSON.stringify(b));

/** A table that the server keeps a version of. */
export function useRows(address: string | null, when: (change: Change) => boolean): Answer<Rows> {
  const load = async (before: Rows | undefined) =>
    merge(before, await get<Sent>(before ? `${address}?since=${encodeURIComponent(before.version)}` : address!));
  return useLive<Rows>(address, load, when);
}
