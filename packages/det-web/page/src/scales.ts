// Where a value lies on an axis, by the declared type of the hyperparameter: a range that was declared logarithmic is drawn so.
import type { Range } from "./api";
import { num, show, type Value } from "./format";

export interface Scale {
  name: string;
  log: boolean;
  /** 0 to 1, or `null` where there is no value. */
  at: (value: Value) => number | null;
  /** The number at a place from 0 to 1; of categories, its index. */
  value: (at: number) => number;
  categories?: string[];
  ticks: { at: number; text: string }[];
}

/** A scale over the values of a column; `range` is the declaration, where it is a hyperparameter. */
export function scaleOf(name: string, values: Value[], range?: Range): Scale {
  const categorical = range ? range.type === "categorical" || range.type === "const" : false;
  if (categorical || values.some((value) => value != null && typeof value !== "number")) return categories(name, values, range);
  let [low, high] = [Infinity, -Infinity];
  for (const value of values as (number | null)[]) {
    if (value == null || !Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) [low, high] = [0, 1];
  return numeric(name, low, high, range?.type === "log" && low > 0);
}

/** An axis from one number to another, with about five ticks. */
export function numeric(name: string, low: number, high: number, log: boolean): Scale {
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  const width = log ? Math.log(high / low) : high - low;
  const at = (value: Value) => {
    if (typeof value !== "number" || !Number.isFinite(value) || (log && value <= 0)) return null;
    return (log ? Math.log(value / low) : value - low) / width;
  };
  const powers = log ? decades(low, high) : [];
  const ticks = (powers.length > 1 ? powers : steps(low, high)).map((value) => ({ at: at(value)!, text: num(value) }));
  return { name, log, at, value: (place) => (log ? low * Math.exp(place * width) : low + place * width), ticks };
}

/** The powers of ten between two numbers; of many, every second or third. */
function decades(low: number, high: number): number[] {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const every = Math.ceil((last - first + 1) / 7);
  const found = [];
  for (let power = first; power <= last; power += every) found.push(Number(`1e${power}`));
  return found;
}

function categories(name: string, values: Value[], range?: Range): Scale {
  const found = new Set((range?.vals ?? []).map(show));
  for (const value of values) if (value != null) found.add(show(value));
  const names = [...found];
  if (!range?.vals) names.sort();
  const place = new Map(names.map((each, i) => [each, (i + 0.5) / names.length]));
  const at = (value: Value) => (value == null ? null : (place.get(show(value)) ?? null));
  const index = (where: number) => Math.min(names.length - 1, Math.max(0, Math.floor(where * names.length)));
  return { name, log: false, at, value: index, categories: names, ticks: names.map((text) => ({ at: place.get(text)!, text })) };
}

/** About five round numbers between two. */
export function steps(low: number, high: number): number[] {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((each) => each >= rough) ?? power * 10;
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step)
    found.push(Number(value.toPrecision(12)));
  return found;
}

/** The colours of lines: told apart in light and dark, and by who sees red and green alike. */
const HUES = [217, 28, 158, 330, 48, 265, 190, 5];
export const hue = (i: number) => `hsl(${HUES[i % HUES.length]} ${70 - 15 * (Math.floor(i / HUES.length) % 3)}% 50%)`;

/** From bad (0) to good (1): dim to bright, so that the good ones are seen over thousands of others. */
export const ramp = (good: number) => `hsl(${250 - 210 * good} ${45 + 40 * good}% ${62 - 12 * good}%)`;

/** Ranks of a metric from 0 (worst) to 1 (best): ranks, because one diverged trial would make all others look alike. */
export function goodness(values: Value[], smallerIsBetter: boolean): (number | null)[] {
  const order = values.flatMap((value, i) => (typeof value === "number" ? [i] : []));
  order.sort((a, b) => ((values[a] as number) - (values[b] as number)) * (smallerIsBetter ? -1 : 1));
  const good: (number | null)[] = new Array(values.length).fill(null);
  order.forEach((i, rank) => (good[i] = order.length > 1 ? rank / (order.length - 1) : 1));
  return good;
}
