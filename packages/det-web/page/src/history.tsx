// How a search came to its best value, when each trial ran, and how good trials are by a hyperparameter.
import { go, param, setParams } from "./address";
import type { Experiment } from "./api";
import { alike, count, duration, num, show, type Value } from "./format";
import type { Rows } from "./live";
import { Choice, Section, useWidth } from "./parts";

const [WIDE, HIGH] = [320, 56];
const MOST_BARS = 500;

/** The best value, large, and its steps over the trials as they ended. */
export function History({ told, rows }: { told: Experiment; rows: Rows }) {
  const c = rows.columns;
  const better = (a: number, b: number) => (told.smaller_is_better ? a < b : a > b);
  const order = [...Array(rows.n).keys()].sort((a, b) => ((c.ended![a] as number) ?? Infinity) - ((c.ended![b] as number) ?? Infinity) || a - b);
  const steps: { at: number; value: number; trial: number }[] = [];
  order.forEach((i, at) => {
    const value = c.best![i];
    if (typeof value === "number" && (!steps.length || better(value, steps.at(-1)!.value))) steps.push({ at, value, trial: c.id![i] as number });
  });
  const last = steps.at(-1);
  const [low, high] = last ? [Math.min(last.value, steps[0]!.value), Math.max(last.value, steps[0]!.value)] : [0, 1];
  const x = (at: number) => 4 + (at / Math.max(1, rows.n - 1)) * (WIDE - 8);
  const y = (value: number) => HIGH - 6 - ((value - low) / (high - low || 1)) * (HIGH - 12);
  const path = steps.map(({ at, value }, k) => `${k ? `H${x(at)}V${y(value)}` : `M${x(at)} ${y(value)}`}`).join("") + (last ? `H${x(rows.n - 1)}` : "");
  return (
    <div class="history">
      <p>
        <strong>{num(last?.value)}</strong>
        <span>best {told.metric}</span>
      </p>
      <figure>
        <svg viewBox={`0 0 ${WIDE} ${HIGH}`} width={WIDE} height={HIGH} role="img" aria-label={`best ${told.metric} over ${count(rows.n, "trial")}: ${count(steps.length, "step")}`}>
          <path d={path} />
          {steps.map(({ at, value, trial }) => (
            <circle key={trial} cx={x(at)} cy={y(value)} r={3}>
              <title>
                trial {trial}: {num(value)}
              </title>
            </circle>
          ))}
        </svg>
        <figcaption>as {count(rows.n, "trial")} ended</figcaption>
      </figure>
    </div>
  );
}

/** When each trial ran: a bar from its start to its end, in the first row that is free. */
export function Timeline({ rows }: { rows: Rows }) {
  const [box, width] = useWidth<HTMLDivElement>();
  const c = rows.columns;
  const begun = [...Array(rows.n).keys()].filter((i) => c.started![i] != null).sort((a, b) => (c.started![a] as number) - (c.started![b] as number));
  const shown = begun.slice(-MOST_BARS);
  const now = Date.now() / 1000;
  const from = (i: number) => c.started![i] as number;
  const to = (i: number) => (c.ended![i] as number) ?? now;
  const [start, end] = [shown.length ? from(shown[0]!) : 0, shown.reduce((most, i) => Math.max(most, to(i)), 0)];
  const x = (at: number) => ((at - start) / (end - start || 1)) * Math.max(0, width - 2);
  const lanes: number[] = [];
  const bars = shown.map((i) => {
    const free = lanes.findIndex((until) => until <= from(i));
    const lane = free < 0 ? lanes.length : free;
    lanes[lane] = to(i);
    return { i, lane };
  });
  const high = lanes.length * 18 + 22;
  return (
    <Section title="Timeline">
      {shown.length < begun.length && <p class="dim">The last {num(MOST_BARS)} trials that began.</p>}
      <div class="timeline" ref={box}>
        <svg width={width} height={high} role="img" aria-label={`${count(shown.length, "trial")} over ${duration(end - start)}`}>
          {bars.map(({ i, lane }) => (
            <g key={i} class={`bar-${c.state![i]}`} onClick={() => go(`/t/${c.id![i]}/metrics`)}>
              <title>
                trial {c.id![i] as number}: {String(c.state![i]).toLowerCase()}, {duration(to(i) - from(i))}
              </title>
              <rect x={x(from(i))} y={lane * 18} width={Math.max(2, x(to(i)) - x(from(i)) - 1)} height={15} rx={2} />
              {x(to(i)) - x(from(i)) > 30 && (
                <text x={x(from(i)) + 4} y={lane * 18 + 12}>
                  {c.id![i] as number}
                </text>
              )}
            </g>
          ))}
          <text x={0} y={high - 4}>
            0
          </text>
          <text x={width - 2} y={high - 4} text-anchor="end">
            {duration(end - start)}
          </text>
        </svg>
      </div>
    </Section>
  );
}

/** Trials that have the same value of a hyperparameter, or of a number one in the same fifth, as a row each. */
export function Groups({ told, rows, names, shown }: { told: Experiment; rows: Rows; names: string[]; shown: number[] }) {
  const by = param("group");
  const choice = <Choice label="by" value={by} from={[["", "–"], ...names.map((name): [string, string] => [name, name])]} onPick={(v) => setParams({ group: v || null })} />;
  const found = names.includes(by) ? grouped(shown, rows.columns[by]!) : [];
  const lines = found.map(({ name, rows: own }) => {
    const values = own.flatMap((i) => (typeof rows.columns.best![i] === "number" ? [rows.columns.best![i] as number] : [])).sort((a, b) => a - b);
    return { name, trials: own.length, best: told.smaller_is_better ? values[0] : values.at(-1), middle: values[values.length >> 1] };
  });
  const write = alike(lines.flatMap(({ best, middle }): Value[] => [best, middle]));
  const cell = (value?: number) => (value == null ? "–" : write(value));
  return (
    <Section title="Groups" tools={choice}>
      {lines.length > 0 && (
        <table class="plain groups">
          <thead>
            <tr>
              <th>{by}</th>
              <th class="number">trials</th>
              <th class="number">best {told.metric}</th>
              <th class="number">median</th>
            </tr>
          </thead>
          <tbody>
            {lines.map(({ name, trials, best, middle }) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td class="number">{num(trials)}</td>
                <td class="number">{cell(best)}</td>
                <td class="number">{cell(middle)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Section>
  );
}

export function grouped(rows: number[], column: Value[]): { name: string; rows: number[] }[] {
  const equal = new Map<string, number[]>();
  for (const i of rows) equal.set(show(column[i]), [...(equal.get(show(column[i])) ?? []), i]);
  const all = rows.filter((i) => typeof column[i] === "number").sort((a, b) => (column[a] as number) - (column[b] as number));
  if (all.length < rows.length || equal.size <= 8) return [...equal].map(([name, own]) => ({ name, rows: own })).sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  return [0, 1, 2, 3, 4].flatMap((k) => {
    const own = all.slice(Math.round((k * all.length) / 5), Math.round(((k + 1) * all.length) / 5));
    return own.length ? [{ name: `${num(column[own[0]!] as number)} – ${num(column[own.at(-1)!] as number)}`, rows: own }] : [];
  });
}
