// What the searcher did, as a picture: brackets with their rungs, or who was copied from whom; and what mattered.
import { useMemo, useRef } from "preact/hooks";
import { A, go } from "./address";
import type { Experiment, Importances as Found, Search } from "./api";
import { Chart, type Line } from "./chart";
import { saveCsv, saveSvg } from "./export";
import { count, num, type Value } from "./format";
import { Timeline } from "./history";
import { ofExperiment, useGet, useRows } from "./live";
import { Empty, Loaded, Section } from "./parts";
import { goodness, hue, ramp } from "./scales";
import { LearningCurves } from "./trials";

export function SearchPicture({ told }: { told: Experiment }) {
  const rows = useRows(`/experiments/${told.id}/trials`, ofExperiment(told.id));
  const answer = useGet<Search>(`/experiments/${told.id}/search`, ofExperiment(told.id));
  return (
    <>
      <Loaded answer={answer}>
        {(search) => {
          const smaller = search.smaller_is_better ?? told.smaller_is_better;
          if (search.brackets?.length) return <Brackets brackets={search.brackets} smaller={smaller} metric={told.metric} unit={unitOf(told)} />;
          if (search.rounds?.length) return <Genealogy rounds={search.rounds} smaller={smaller} />;
          return <LearningCurves told={told} />;
        }}
      </Loaded>
      <Importances told={told} />
      <Loaded answer={rows}>{(found) => <Timeline rows={found} />}</Loaded>
    </>
  );
}

type Bracket = NonNullable<Search["brackets"]>[number];

/** What the lengths of rungs are counted in: what the configuration's `max_length` is. */
function unitOf({ config }: Experiment): string {
  const searcher = config.searcher as { [key: string]: Value } | undefined;
  const length = searcher?.max_length;
  return length && typeof length === "object" ? (Object.keys(length)[0] ?? "batches") : "batches";
}

function Brackets({ brackets, smaller, metric, unit }: { brackets: Bracket[]; smaller: boolean; metric: string; unit: string }) {
  return (
    <>
      {brackets.map((bracket, i) => (
        <Rungs key={i} number={i + 1} bracket={bracket} smaller={smaller} metric={metric} unit={unit} />
      ))}
    </>
  );
}

/** A bracket: how many trials reached each rung and how many of them went on, and below it every trial's way down the rungs. */
function Rungs({ number, bracket, smaller, metric, unit }: { number: number; bracket: Bracket; smaller: boolean; metric: string; unit: string }) {
  const picture = useRef<SVGSVGElement>(null);
  const { rungs } = bracket;
  const most = Math.max(1, ...rungs.map(({ trials }) => trials.length));
  const name = `Bracket ${number}`;
  const lines = useMemo(() => {
    const ways = new Map<number, Line>();
    for (const { length, trials } of rungs)
      for (const { id, metric: value } of trials) {
        const line = ways.get(id) ?? { label: `trial ${id}`, x: [], y: [], color: hue(0), dots: true, open: () => go(`/t/${id}/metrics`) };
        line.x.push(length);
        line.y.push(value);
        ways.set(id, line);
      }
    const found = [...ways.values()].sort((a, b) => a.x.length - b.x.length);
    found.forEach((line) => (line.color = hue(line.x.length - 1)));
    return found;
  }, [bracket]);
  const rows: Value[][] = rungs.flatMap(({ length, trials }) => trials.map((each) => [length, each.id, each.metric, each.promoted]));
  const tools = (
    <>
      <button onClick={() => saveSvg(name, picture.current!)}>SVG</button>
      <button onClick={() => saveCsv(name, [["length", "trial", metric, "promoted"], ...rows])}>CSV</button>
    </>
  );
  const best = (trials: Bracket["rungs"][number]["trials"]) => {
    const values = trials.flatMap(({ metric: value }) => (value == null ? [] : [value]));
    return values.length ? (smaller ? Math.min(...values) : Math.max(...values)) : null;
  };
  return (
    <Section title={name} tools={tools}>
      <div class="scrolled">
        <svg ref={picture} viewBox={`0 0 760 ${rungs.length * 34 + 8}`} width={760} height={rungs.length * 34 + 8} role="img" aria-label={`${name}: ${rungs.length} rungs`}>
          {rungs.map(({ length, trials }, i) => {
            const promoted = trials.filter((each) => each.promoted).length;
            const [wide, went] = [(trials.length / most) * 360, (promoted / most) * 360];
            return (
              <g key={length} transform={`translate(0 ${i * 34 + 6})`}>
                <text x={96} y={17} text-anchor="end">
                  {num(length)} {unit}
                </text>
                <rect class="bar" x={110 + (360 - wide) / 2} width={wide} height={24} rx={3} />
                <rect class="bar good" x={110 + (360 - went) / 2} width={went} height={24} rx={3} />
                <text x={484} y={17}>
                  {count(trials.length, "trial")}, {num(promoted)} went on, best {num(best(trials))}
                </text>
              </g>
            );
          })}
        </svg>
      </div>
      <Chart name={`${metric} at each rung of bracket ${number}`} lines={lines} xLabel={unit} logX height={220} />
    </Section>
  );
}

/** Population-based training: a column for each round, the best on top; a line goes from each to the one it was copied from. */
function Genealogy({ rounds, smaller }: { rounds: NonNullable<Search["rounds"]>; smaller: boolean }) {
  const picture = useRef<SVGSVGElement>(null);
  const laid = useMemo(() => {
    const family = new Map<number, number>(); // who of the first round everyone comes from
    return rounds.map((round) => {
      const good = goodness(round.map(({ metric }) => metric), smaller);
      const order = [...round.keys()].sort((a, b) => (good[b] ?? -1) - (good[a] ?? -1));
      return order.map((k) => {
        const each = round[k]!;
        if (!family.has(each.id)) family.set(each.id, each.parent != null ? (family.get(each.parent) ?? each.parent) : each.id);
        return { ...each, good: good[k] ?? 0, family: family.get(each.id)! };
      });
    });
  }, [rounds, smaller]);
  const most = Math.max(...laid.map((round) => round.length));
  const [wide, high] = [Math.max(90, Math.min(150, 1000 / laid.length)), 18];
  const families = [...new Set(laid[0]!.map((each) => each.family))];
  const place = (round: number, id: number | null) => laid[round]?.findIndex((each) => each.id === id) ?? -1;
  const [width, height] = [laid.length * wide + 40, most * high + 40];
  const tools = (
    <>
      <button onClick={() => saveSvg("genealogy", picture.current!)}>SVG</button>
      <button onClick={() => saveCsv("genealogy", [["round", "trial", "parent", "metric"], ...rounds.flatMap((round, r) => round.map((each) => [r + 1, each.id, each.parent, each.metric]))])}>CSV</button>
    </>
  );
  return (
    <Section title="Genealogy" tools={tools}>
      <p class="dim">A column for each round, the best on top; colours are families, and a line comes from the trial that was gone on from.</p>
      <div class="scrolled">
        <svg ref={picture} viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label={`Genealogy of ${rounds.length} rounds`}>
          {laid.map((round, r) =>
            round.map((each, k) => {
              const [x, y] = [r * wide + 20, k * high + 34];
              const from = r ? place(r - 1, place(r - 1, each.id) >= 0 ? each.id : each.parent) : -1;
              const color = hue(families.indexOf(each.family));
              return (
                <g key={`${r} ${each.id}`}>
                  {from >= 0 && <path class="edge" d={`M${x - wide + 56} ${from * high + 34}C${x - 16} ${from * high + 34} ${x - 16} ${y} ${x - 7} ${y}`} stroke={color} />}
                  <circle cx={x} cy={y} r={5} fill={color} stroke={ramp(each.good)} stroke-width={2} />
                  <a href={`/t/${each.id}/metrics`} onClick={(event) => (event.preventDefault(), go(`/t/${each.id}/metrics`))}>
                    <text x={x + 9} y={y + 4} class="tick">
                      {each.id}: {num(each.metric)}
                    </text>
                  </a>
                </g>
              );
            }),
          )}
          {laid.map((_, r) => (
            <text key={r} x={r * wide + 14} y={14}>
              {r + 1}
            </text>
          ))}
        </svg>
      </div>
    </Section>
  );
}

/** Whole percents that are 100 together: what no hyperparameter alone explains is a part of its own. The terminal rounds in the same way. */
export function shared(shares: Record<string, number>): { rows: [string, number][]; rest: number } {
  const sum = (numbers: number[]) => numbers.reduce((a, b) => a + b, 0);
  const whole = Math.max(1, sum(Object.values(shares)));
  const parts = Object.values(shares).map((share) => (100 * share) / whole);
  parts.push(Math.max(0, 100 - sum(parts)));
  const percents = parts.map((part) => Math.floor(part + 1e-9));
  const left = (i: number) => parts[i]! - percents[i]!;
  const byRemainder = parts.map((_, i) => i).sort((a, b) => left(b) - left(a));
  for (const i of byRemainder.slice(0, 100 - sum(percents))) percents[i]!++;
  const rest = percents.pop() ?? 0;
  const rows = Object.keys(shares).map((name, i): [string, number] => [name, percents[i]!]);
  return { rows: rows.sort(([, a], [, b]) => b - a), rest };
}

function Importances({ told }: { told: Experiment }) {
  const answer = useGet<Found>(`/experiments/${told.id}/importances`, ofExperiment(told.id));
  const { rows, rest } = shared(answer.value?.shares ?? {});
  return (
    <Section title="Importances" tools={<button disabled={!rows.length} onClick={() => saveCsv("importances", [["hyperparameter", "percent"], ...rows])}>CSV</button>}>
      <Loaded answer={answer}>
        {({ trials, length, needed }) =>
          rows.length ? (
            <>
              <p class="dim">
                Of the differences between {count(trials, "trial")}
                {length != null && ` at ${num(length)} ${unitOf(told)}, the length that most of them reached`}, what each hyperparameter alone explains.
              </p>
              <table class="plain">
                <tbody>
                  {rows.map(([name, share]) => (
                    <tr key={name}>
                      <th scope="row">
                        <A to={`/e/${told.id}/trials?x=${encodeURIComponent(name)}&y=best`}>{name}</A>
                      </th>
                      <td>
                        <meter value={share} max={100} aria-label={name} />
                      </td>
                      <td class="number">{share} %</td>
                    </tr>
                  ))}
                  <tr class="dim">
                    <th scope="row">interplay and chance</th>
                    <td />
                    <td class="number">{rest} %</td>
                  </tr>
                </tbody>
              </table>
            </>
          ) : trials < needed ? (
            <Empty>
              Too few trials: {trials} can be compared{length != null && ` at ${num(length)} ${unitOf(told)}`}, and it takes {needed} to tell what mattered from chance.
            </Empty>
          ) : (
            <Empty>Nothing that was searched explains any of the differences between {count(trials, "trial")}.</Empty>
          )
        }
      </Loaded>
    </Section>
  );
}
