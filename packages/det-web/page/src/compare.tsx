// Trials beside each other, of one experiment or several: their curves in one picture and their hyperparameters in one table.
import { useMemo } from "preact/hooks";
import { A, go, param, setParams } from "./address";
import { get, queried, type Experiment, type Series, type Trial } from "./api";
import { Chart, type Line } from "./chart";
import { saveCsv } from "./export";
import { num, show, type Value } from "./format";
import { ofExperiment, ofTrials, useLive, useRows } from "./live";
import { Choice, Empty, Loaded, Section, State } from "./parts";
import { hue } from "./scales";
import { readRange, writeRange } from "./trials";

export function Compare({ ids }: { ids: number[] }) {
  if (!ids.length)
    return (
      <main>
        <h1>Compare</h1>
        <Empty>
          Choose trials in an experiment’s table (a tick, or <kbd>x</kbd>) and press Compare; or write their numbers into the address:{" "}
          <code>/compare?t=1,2</code>.
        </Empty>
      </main>
    );
  return (
    <main>
      <h1>Compare {ids.length} trials</h1>
      <Beside ids={ids} />
    </main>
  );
}

function Beside({ ids }: { ids: number[] }) {
  const answer = useLive<Trial[]>(ids.join(), async () => (await get<{ trials: Trial[] }>(`/trials?ids=${ids}`)).trials, ofTrials(ids));
  return <Loaded answer={answer}>{(trials) => <Compared trials={trials} />}</Loaded>;
}

const BEST = 8;

/** The best trials of an experiment beside each other; or those that the address names. */
export function CompareBest({ told }: { told: Experiment }) {
  const rows = useRows(`/experiments/${told.id}/trials`, ofExperiment(told.id));
  const named = param("t").split(",").map(Number).filter(Boolean);
  return (
    <Loaded answer={rows}>
      {({ n, columns }) => {
        const measured = [...Array(n).keys()].filter((i) => typeof columns.best![i] === "number");
        measured.sort((a, b) => ((columns.best![a] as number) - (columns.best![b] as number)) * (told.smaller_is_better ? 1 : -1));
        const ids = named.length ? named : measured.slice(0, BEST).map((i) => columns.id![i] as number);
        if (!ids.length) return <Empty>No trial has a value to compare by.</Empty>;
        return (
          <>
            <p class="dim">
              {named.length ? "The trials that were chosen" : `The best ${ids.length} of ${n}`}; tick others in <A to={`/e/${told.id}/trials`}>trials</A> and press Compare.
            </p>
            <Beside ids={ids} />
          </>
        );
      }}
    </Loaded>
  );
}

function Compared({ trials }: { trials: Trial[] }) {
  const pairs = new Set(trials.flatMap(({ metrics }) => Object.entries(metrics).flatMap(([group, names]) => names.map((name) => `${group} ${name}`))));
  const names = [...pairs].sort((a, b) => Number(b.startsWith("validation")) - Number(a.startsWith("validation")) || (a < b ? -1 : 1));
  const wanted = trials[0]?.metric ? `validation ${trials[0].metric}` : "";
  const metric = param("metric", names.includes(wanted) ? wanted : (names[0] ?? ""));
  return (
    <>
      {metric ? <Curves trials={trials} names={names} metric={metric} /> : <Empty>None of them has reported a metric.</Empty>}
      <Differing trials={trials} />
    </>
  );
}

function Curves({ trials, names, metric }: { trials: Trial[]; names: string[]; metric: string }) {
  const [group, ...rest] = metric.split(" ");
  const [name, by, range] = [rest.join(" "), param("by", "batches"), readRange(param("zoom"))];
  const ids = trials.map(({ id }) => id);
  const load = () =>
    Promise.all(
      trials.map(({ id, metrics }) =>
        metrics[group!]?.includes(name)
          ? get<Series>(`/trials/${id}/series${queried({ metric: name, group, by, width: 1000, from: range?.[0], to: range?.[1] })}`)
          : { n: 0, x: [], y: [], best: null },
      ),
    );
  const answer = useLive<Series[]>(`${ids.join()} ${metric} ${by} ${range}`, load, ofTrials(ids));
  const lines = useMemo(
    () =>
      (answer.value ?? []).map(({ x, y }, i): Line => {
        const { id, experiment } = trials[i]!;
        return { label: `trial ${id} of experiment ${experiment}`, x, y, color: hue(i), width: 1.5, open: () => go(`/t/${id}/metrics`) };
      }),
    [answer.value],
  );
  const log = param("log") === "1";
  const tools = (
    <>
      <Choice label="metric" value={metric} from={names} onPick={(v) => setParams({ metric: v })} />
      <Choice label="over" value={by} from={["batches", "epochs", ["seconds", "time"]]} onPick={(v) => setParams({ by: v, zoom: null })} />
      <label>
        <input type="checkbox" checked={log} onChange={() => setParams({ log: log ? null : "1" })} /> log
      </label>
    </>
  );
  return (
    <Chart
      name={name}
      lines={lines}
      xLabel={by === "seconds" ? "time" : by}
      x={by === "seconds" ? "seconds" : "number"}
      log={log}
      range={range}
      onZoom={(r) => setParams({ zoom: r && writeRange(r) })}
      tools={tools}
      height={340}
    />
  );
}

function flat(values: object, before = ""): [string, Value][] {
  return Object.entries(values).flatMap(([name, value]) =>
    value && typeof value === "object" && !Array.isArray(value) ? flat(value, `${before}${name}.`) : [[before + name, value] as [string, Value]],
  );
}

/** A column for each trial; what is the same in all of them is dim, so that what differs is seen. */
function Differing({ trials }: { trials: Trial[] }) {
  const hparams = trials.map((trial) => new Map(flat(trial.hparams)));
  const names = [...new Set(hparams.flatMap((each) => [...each.keys()]))];
  const rows = names.map((name) => ({ name, values: hparams.map((each) => each.get(name)) }));
  const differs = (values: Value[]) => new Set(values.map((value) => JSON.stringify(value))).size > 1;
  rows.sort((a, b) => Number(differs(b.values)) - Number(differs(a.values)));
  const ids = trials.map(({ id }) => id);
  const without = (id: number) => setParams({ t: ids.filter((each) => each !== id).join(",") });
  return (
    <Section title="Hyperparameters" tools={<button onClick={() => saveCsv("compared", [["", ...ids], ...rows.map(({ name, values }) => [name, ...values])])}>CSV</button>}>
      <div class="scrolled">
        <table class="plain">
          <thead>
            <tr>
              <th />
              {trials.map(({ id, experiment }, i) => (
                <th key={id} scope="col">
                  <i class="swatch" style={{ background: hue(i) }} />
                  <A to={`/t/${id}/metrics`}>trial {id}</A> of <A to={`/e/${experiment}/trials`}>{experiment}</A>{" "}
                  <button aria-label={`leave trial ${id} out`} onClick={() => without(id)}>
                    ×
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            <tr>
              <th scope="row">state</th>
              {trials.map(({ id, state }) => (
                <td key={id}>
                  <State name={state} />
                </td>
              ))}
            </tr>
            <tr>
              <th scope="row">best</th>
              {trials.map(({ id, best }) => (
                <td key={id}>{num(best)}</td>
              ))}
            </tr>
            {rows.map(({ name, values }) => (
              <tr key={name} class={differs(values) ? undefined : "dim"}>
                <th scope="row">{name}</th>
                {values.map((value, i) => (
                  <td key={ids[i]}>{show(value)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Section>
  );
}
