// How numbers, times, sizes and states are written: the one place, so that the same value looks the same everywhere.

export const NONE = "–";
export type Value = number | string | boolean | null | undefined | Value[] | { [key: string]: Value };

/** A number with up to four significant digits; whole numbers whole, very large and small ones with an exponent. */
export function num(value: number | null | undefined): string {
  if (value == null || Number.isNaN(value)) return NONE;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return grouped(value);
  if (size >= 1e6 || size < 1e-3) return signed(value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e"));
  return signed(String(Number(value.toPrecision(4))));
}

const written = new WeakMap<Value[], (value: number) => string>();

/** How the numbers of a column are written: with like precision, so that they compare at a glance. */
export function alike(column: Value[]): (value: number) => string {
  const known = written.get(column);
  if (known) return known;
  let [least, most, whole] = [Infinity, 0, true];
  for (const value of column) {
    if (typeof value !== "number" || !Number.isFinite(value)) continue;
    if (!Number.isInteger(value)) whole = false;
    const size = Math.abs(value);
    if (size && size < least) least = size;
    if (size > most) most = size;
  }
  let made: (value: number) => string = num;
  const digits = 3 - Math.floor(Math.log10(least));
  if (!whole && most) {
    if (most < 1e6 && digits <= 8 && most / least < 1e5) made = (value) => signed(value.toFixed(Math.max(0, digits)));
    else if (most >= 1e6 || least < 1e-3) made = (value) => (value ? signed(value.toExponential(3).replace("e+", "e")) : "0");
  }
  const safe = (value: number) => (Number.isFinite(value) ? made(value) : num(value));
  written.set(column, safe);
  return safe;
}

function signed(text: string): string {
  return text.replace(/-/g, "−");
}

/** Digits by three with narrow spaces, from five digits on, as one writes years and batch sizes without. */
function grouped(value: number): string {
  const digits = String(Math.abs(value));
  const parted = digits.length < 5 ? digits : digits.replace(/\B(?=(\d{3})+$)/g, "\u202f");
  return value < 0 ? `−${parted}` : parted;
}

/** Any value of a configuration or a hyperparameter. */
export function show(value: Value): string {
  if (value == null) return NONE;
  if (typeof value === "number") return num(value);
  if (typeof value === "string") return value;
  return typeof value === "boolean" ? String(value) : JSON.stringify(value);
}

/** Seconds as people say them: 0.4 s, 12 s, 3 min 05 s, 2 h 07 min, 4 d 03 h. */
export function duration(seconds: number | null | undefined): string {
  if (seconds == null) return NONE;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const pad = (n: number) => String(Math.floor(n)).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${pad((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${pad((whole % 86400) / 3600)} h`;
}

/** Seconds since the epoch in the reader's own zone, in an order that sorts. */
export function time(seconds: number | null | undefined, exact = false): string {
  if (seconds == null) return NONE;
  const at = new Date(seconds * 1000);
  const two = (n: number) => String(n).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}${exact ? `:${two(at.getSeconds())}` : ""}`;
}

/** Bytes in decimal units. */
export function size(bytes: number | null | undefined): string {
  if (bytes == null) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; bytes >= 1000 && at < units.length - 1; at++) bytes /= 1000;
  return `${at ? Number(bytes.toPrecision(3)) : bytes} ${units[at]}`;
}

/** A whole percentage, which is 100 at the end only. The terminal rounds in the same way. */
export function percent(share: number | null | undefined): string {
  return share == null ? NONE : `${Math.floor(100 * share + 1e-9)} %`;
}

/** Text with the last state of each line that was redrawn, such as a progress bar's. */
export function settled(text: string): string {
  return text.includes("\r")
    ? text
        .split("\n")
        .map((line) => line.replace(/\r+$/, "").replace(/.*\r/s, ""))
        .join("\n")
    : text;
}

/** A state in lower case; colours come from the class of the same name. */
export function state(name: string | null | undefined): string {
  return name ? name.toLowerCase().replace("_hp", " hyperparameters").replace("_", " ") : NONE;
}

/** A count with its noun: `1 trial`, `3 trials`. */
export function count(n: number, noun: string): string {
  return `${num(n)} ${noun}${n === 1 ? "" : "s"}`;
}

/** The words of a list separated by commas, each once. */
export const words = (text: string) => [...new Set(text.split(",").map((each) => each.trim()).filter(Boolean))];
