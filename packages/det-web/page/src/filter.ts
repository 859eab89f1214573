// The filter's language: words, `name:value`, `name<0.1`, `name=relu`, `-word` for the contrary; all of them must hold.
import type { Value } from "./format";

/** Tells of row `i` whether it is wanted. */
export type Wanted = (i: number) => boolean;
/** A column by its name, or `undefined`. */
export type Columns = (name: string) => Value[] | undefined;

export interface Filter {
  wanted: Wanted;
  /** What of the text means nothing here, as a sentence. */
  problem?: string;
}

const TERM = /(-?)([\w./[\]-]+?)(<=|>=|!=|<|>|=|:)("[^"]*"|\S+)|(-?)("[^"]*"|\S+)/g;

const plain = (text: string) => (text.startsWith('"') ? text.replaceAll('"', "") : text).toLowerCase();

/** Whether a value, a list of labels or the values of an object hold a text. */
function holds(value: Value, text: string): boolean {
  if (value == null) return false;
  if (typeof value === "object") return Object.values(value).some((each) => holds(each, text));
  return String(value).toLowerCase().includes(text);
}

function compare(value: Value, sign: string, than: string): boolean {
  if (Array.isArray(value)) return sign === "!=" ? !value.some((each) => compare(each, "=", than)) : value.some((each) => compare(each, sign, than));
  if (value == null) return sign === "!=";
  const right = Number(than);
  const number = typeof value === "number" && !Number.isNaN(right);
  if (sign === "=") return number ? value === right : String(value).toLowerCase() === than;
  if (sign === "!=") return number ? value !== right : String(value).toLowerCase() !== than;
  if (!number) return false;
  return sign === "<" ? value < right : sign === "<=" ? value <= right : sign === ">" ? value > right : value >= right;
}

/** Makes a filter from what was typed; `searched` are the columns that a word alone is looked for in. */
export function filter(text: string, column: Columns, searched: string[]): Filter {
  const tests: Wanted[] = [];
  let problem: string | undefined;
  const words = searched.map((name) => column(name)).filter((values) => values !== undefined);
  for (const [, not, name, sign, than, notWord, word] of text.matchAll(TERM)) {
    if (name === undefined) {
      const wanted = plain(word!);
      tests.push(notWord ? (i) => !words.some((v) => holds(v[i], wanted)) : (i) => words.some((v) => holds(v[i], wanted)));
      continue;
    }
    const values = column(name) ?? column(`${name}s`); // `label:x` for the column of labels
    if (!values) {
      problem = `There is no column “${name}”.`;
      continue;
    }
    const wanted = plain(than!);
    const test: Wanted = sign === ":" ? (i) => holds(values[i], wanted) : (i) => compare(values[i], sign!, wanted);
    tests.push(not ? (i) => !test(i) : test);
  }
  return { wanted: (i) => tests.every((test) => test(i)), problem };
}

/** Ranges by column, as a brush draws them: `lr:0.001~0.1,activation:relu|tanh`. */
export type Brush = Record<string, [number, number] | string[]>;

export function readBrush(text: string): Brush {
  const found: Brush = {};
  for (const part of text.split(",").filter(Boolean)) {
    const [name, value] = [part.slice(0, part.lastIndexOf(":")), part.slice(part.lastIndexOf(":") + 1)];
    if (value.includes("~")) found[name] = value.split("~").map(Number) as [number, number];
    else found[name] = value.split("|").map(decodeURIComponent);
  }
  return found;
}

export function writeBrush(brush: Brush): string {
  const part = (value: Brush[string]) =>
    typeof value[0] === "number" ? value.map((x) => Number((x as number).toPrecision(4))).join("~") : value.map((x) => encodeURIComponent(String(x))).join("|");
  return Object.entries(brush).map(([name, value]) => `${name}:${part(value)}`).join(",");
}

export function brushed(brush: Brush, column: Columns): Wanted {
  const tests = Object.entries(brush).map(([name, range]): Wanted => {
    const values = column(name) ?? [];
    if (typeof range[0] === "number") {
      const [low, high] = range as [number, number];
      return (i) => typeof values[i] === "number" && (values[i] as number) >= low && (values[i] as number) <= high;
    }
    const set = new Set(range as string[]);
    return (i) => set.has(String(values[i]));
  });
  return (i) => tests.every((test) => test(i));
}

/** The rows in the order of a column: those without a value come last whichever way it is sorted. */
export function sorted(rows: number[], values: Value[] | undefined, down: boolean): number[] {
  if (!values) return rows;
  const sign = down ? -1 : 1;
  const empty = (v: Value) => v == null || v === "" || (Array.isArray(v) && !v.length);
  const full = rows.filter((i) => !empty(values[i]));
  const numbers = full.every((i) => typeof values[i] === "number" || typeof values[i] === "boolean");
  if (numbers) full.sort((a, b) => sign * (Number(values[a]) - Number(values[b])) || a - b);
  else {
    const texts = new Map(full.map((i) => [i, String(values[i])]));
    const order = new Intl.Collator("en", { numeric: true });
    full.sort((a, b) => sign * order.compare(texts.get(a)!, texts.get(b)!) || a - b);
  }
  return full.concat(rows.filter((i) => empty(values[i])));
}
