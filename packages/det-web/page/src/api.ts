// What the server is asked and what it answers; the shapes are those of /api/v1's OpenAPI document.
import { signal } from "@preact/signals";
import type { Value } from "./format";

const ROOT = "/api/v1";

/** An answer that is no success, with the sentence that the server gave. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Whether the server could not be reached when it was last asked. */
export const unreachable = signal(false);

export interface About {
  version: string;
  home: string;
  hostname: string;
  user: string | null;
  role: string | null;
}

/** The server, and who is signed in to it. */
export const about = signal<About | undefined>(undefined);

/** Whether the one who looks may change anything at all. Which experiments, the server decides and says. */
export const mayChange = () => about.value?.role !== "viewer";

async function ask(address: string, init?: RequestInit): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(ROOT + address, init);
    unreachable.value = false;
  } catch (problem) {
    if ((problem as Error).name !== "AbortError") unreachable.value = true;
    throw problem;
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  const hint = answer.status === 401 ? "This browser is not signed in: open the address that `det ui` printed." : "";
  throw new Refused(answer.status, hint || said.error || `The server answered ${answer.status}.`);
}

export async function get<T>(address: string, signal?: AbortSignal): Promise<T> {
  return (await ask(address, { signal })).json();
}

export async function getText(address: string, signal?: AbortSignal): Promise<string> {
  return (await ask(address, { signal })).text();
}

/** The objects of an NDJSON stream, one by one as they come. */
export async function* lines<T>(address: string, signal: AbortSignal): AsyncGenerator<T> {
  const reader = (await ask(address, { signal })).body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    const parts = (rest + (value ?? "")).split("\n");
    rest = done ? "" : parts.pop()!;
    for (const part of parts) if (part) yield JSON.parse(part) as T;
    if (done) return;
  }
}

/** Changes something: such a request carries a header of our own, which no foreign page can send. */
export async function send<T>(method: string, address: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = { "X-Det": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await ask(address, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await answer.text();
  return (text ? JSON.parse(text) : {}) as T;
}

/** Names and values as a query string; those without a value are left out. */
export function queried(values: Record<string, string | number | null | undefined>): string {
  const kept = Object.entries(values).filter(([, value]) => value != null && value !== "");
  return kept.length ? `?${new URLSearchParams(kept.map(([name, value]) => [name, String(value)]))}` : "";
}

export interface Range {
  name: string;
  type: "const" | "int" | "double" | "log" | "categorical";
  minval?: number | null;
  maxval?: number | null;
  base?: number | null;
  vals?: Value[] | null;
}

export interface Experiment {
  id: number;
  name: string;
  state: string;
  driven: boolean;
  orphaned: boolean;
  archived: boolean;
  labels: string[];
  note: string;
  searcher: string;
  metric: string;
  smaller_is_better: boolean;
  best: number | null;
  best_trial: number | null;
  progress: number;
  trials: number;
  created: number;
  started: number | null;
  ended: number | null;
  seconds: number | null;
  problem?: string | null;
  config: { [key: string]: Value };
  source: string;
  defaulted: string[];
  elsewhere: { [key: string]: Value };
  space: Range[];
  why: string | null;
  metrics: { training: string[]; validation: string[] };
  kind: "curves" | "rungs" | "population";
}

export interface Checkpoints {
  uuid: string[];
  trial: number[];
  batches: number[];
  metric: (number | null)[];
  size: (number | null)[];
  state: string[];
  created: number[];
  best: boolean[];
}

export interface Run {
  id: number;
  number: number;
  state: string;
  started: number;
  ended: number | null;
  why: string | null;
  host: string | null;
  from?: number | null;
  ranks: { rank: number; size: number }[];
}

export interface Trial {
  id: number;
  experiment: number;
  experiment_name?: string;
  state: string;
  hparams: { [name: string]: Value };
  why: string | null;
  failure?: { run: number; rank: number; text: string } | null;
  ended?: number | null;
  runs: Run[];
  metrics: Record<string, string[]>;
  checkpoints: { uuid: string; batches: number; size: number | null; state: string; metric?: number | null; best?: boolean }[];
  traces: { name: string; size: number }[];
  load: string;
  batches?: number;
  best?: number | null;
  best_batches?: number | null;
  metric?: string;
  parent?: number | null;
}

export interface MediaSeries {
  name: string;
  kind: "image" | "table" | "text";
  files: { batches: number; path: string; size: number; written: number }[];
}

export interface Search {
  kind: string;
  metric?: string;
  smaller_is_better?: boolean;
  brackets?: { rungs: { length: number; trials: { id: number; metric: number | null; promoted: boolean }[] }[] }[];
  rounds?: { id: number; parent: number | null; metric: number | null }[][];
}

export interface Importances {
  shares: Record<string, number>;
  trials: number;
  length: number | null;
  needed: number;
}

export interface LogEnd {
  trial: number;
  run: number;
  rank: number;
  started: number;
  ended: number | null;
  why: string | null;
  log: { text: string; offset: number; end: number; size: number };
}

export interface Curves {
  trials: number[];
  x: number[][];
  y: (number | null)[][];
}

export interface Series {
  n: number;
  x: number[];
  y: (number | null)[];
  best: [number, number] | null;
}

export interface Cluster {
  machines: { name: string; slots: { id: string | number; kind: string; experiment: number | null; trial: number | null }[] }[];
  waiting: { experiment: number; for: string; held_by: number[] | string | null }[];
}
