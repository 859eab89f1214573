// The trials of an experiment: their learning curves, parallel coordinates whose brush filters the table, scatter, and the table.
import { useMemo, useState } from "preact/hooks";
import { A, go, param, setParams } from "./address";
import { queried, type Curves, type Experiment } from "./api";
import { Chart, type Line } from "./chart";
import { brushed, readBrush, type Brush } from "./filter";
import { duration, time, type Value } from "./format";
import { ofExperiment, useGet, useRows, type Rows } from "./live";
import { Parallel } from "./parallel";
import { Choice, Empty, Loaded, State } from "./parts";
import { hue, scaleOf } from "./scales";
import { Scatter } from "./scatter";
import { Smoothing, smooth } from "./metrics";
import { Groups, History } from "./history";
import { Table, type Column } from "./table";

export function Trials({ told }: { told: Experiment }) {
  const answer = useRows(`/experiments/${told.id}/trials`, ofExperiment(told.id));
  return <Loaded answer={answer}>{(rows) => (rows.n ? <Shown told={told} rows={rows} /> : <Empty>{told.ended != null ? "The search ended before it made a trial." : "The search has made no trial yet."}</Empty>)}</Loaded>;
}

function Shown({ told, rows }: { told: Experiment; rows: Rows }) {
  const [brush, setBrush] = useState<Brush>(() => readBrush(param("brush")));
  const [table, setShown] = useState<number[] | null>(null);
  const text = param("brush");
  useMemo(() => setBrush(readBrush(text)), [text]); // going back, or Escape, changes the address
  const c = rows.columns;
  // A scale changes only when the column it is of does, so that a live table does not draw everything anew for a number of batches.
  const metric = c.best!;
  const ranges = new Map(told.space.map((range) => [range.name, range]));
  const searched = rows.hparams.filter((name) => ranges.get(name.replace(/^hparams\./, ""))?.type !== "const");
  const axes = useMemo(
    () =>
      [...searched.map((name) => ({ name, values: c[name]! })), { name: "best", values: metric }].map(({ name, values }) => ({
        values,
        scale: scaleOf(name, values, ranges.get(name.replace(/^hparams\./, ""))),
      })),
    [metric, ...searched.map((name) => c[name])],
  );
  const among = useMemo(() => (Object.keys(brush).length ? brushed(brush, (name) => c[name]) : undefined), [rows, brush]);
  const all = useMemo(() => [...Array(rows.n).keys()], [rows]);
  const shown = useMemo(() => (table ?? (among ? all.filter(among) : all)).filter((i) => i < rows.n), [table, table ? rows.n : all]);
  const parallel = (
    <Parallel axes={axes} metric={metric} smallerIsBetter={told.smaller_is_better} shown={shown} brush={brush} onBrush={setBrush} />
  );
  const props = { ids: c.id as number[], axes, metric, metricName: told.metric, smallerIsBetter: told.smaller_is_better, shown };
  return (
    <>
      <History told={told} rows={rows} />
      <LearningCurves told={told} />
      {searched.length > 0 && parallel}
      {searched.length > 0 && <Scatter {...props} />}
      {searched.length > 0 && <Groups told={told} rows={rows} names={searched} shown={shown} />}
      <Table
        name={`trials of experiment ${told.id}`}
        rows={rows}
        columns={columnsOf(rows, told)}
        searched={["id", "state", "why", ...rows.hparams]}
        sort={told.smaller_is_better ? "best" : "-best"}
        open={(id) => `/t/${id}/metrics`}
        choosing={{ title: "Compare", act: (ids) => go(`/compare?t=${ids.join(",")}`) }}
        among={among}
        onShown={(next) => setShown((now) => (now && now.length === next.length && now.every((i, k) => i === next[k]) ? now : next))}
      />
    </>
  );
}

function columnsOf(rows: Rows, told: Experiment): Column[] {
  const c = rows.columns;
  const seconds = (i: number) => (c.seconds?.[i] as number) ?? (c.started?.[i] ? Date.now() / 1000 - (c.started[i] as number) : null);
  return [
    { name: "id", title: "trial", width: 76, cell: (i) => <A to={`/t/${c.id![i]}/metrics`}>{c.id![i] as number}</A> },
    { name: "state", width: 120, cell: (i) => <State name={c.state![i] as string} /> },
    { name: "best", title: `best ${told.metric}`, width: 150, number: true },
    { name: "last", width: 96, number: true },
    { name: "batches", width: 96, number: true },
    { name: "best_batches", title: "best at", width: 96, number: true },
    ...rows.hparams.map((name) => ({ name })),
    { name: "restarts", width: 90 },
    { name: "seconds", title: "duration", width: 120, number: true, cell: (i) => duration(seconds(i)) },
    { name: "started", width: 150, hidden: true, cell: (i) => time(c.started?.[i] as number) },
    { name: "parent", width: 90, hidden: !c.parent?.some((each: Value) => each != null) },
    { name: "why", width: 260, hidden: true },
  ];
}

export function LearningCurves({ told }: { told: Experiment }) {
  const names = told.metrics.validation;
  const metric = param("metric", names.includes(told.metric) ? told.metric : (names[0] ?? told.metric));
  const top = param("top", "100");
  const log = param("log") === "1";
  const by = param("by", "batches");
  const weight = Number(param("smooth", "0"));
  const answer = useGet<Curves>(`/experiments/${told.id}/curves${queried({ metric, group: "validation", top, by })}`, ofExperiment(told.id));
  const lines = useMemo(() => {
    const { trials, x, y } = answer.value ?? { trials: [], x: [], y: [] };
    const made = trials.map((id, i): Line => ({ label: `trial ${id}`, x: x[i]!, y: weight ? smooth(y[i]!, weight) : y[i]!, color: hue(i), open: () => go(`/t/${id}/metrics`) }));
    return made.reverse(); // they come best first, and what is drawn last is on top
  }, [answer.value, weight]);
  const range = readRange(param("zoom"));
  const tools = (
    <>
      <Choice label="metric" value={metric} from={names.length ? names : [metric]} onPick={(v) => setParams({ metric: v })} />
      <Choice label="best" value={top} from={["10", "100", "1000", ["10000", "all"]]} onPick={(v) => setParams({ top: v === "100" ? null : v })} />
      <Choice label="over" value={by} from={["batches", "epochs", ["seconds", "time"]]} onPick={(v) => setParams({ by: v === "batches" ? null : v, zoom: null })} />
      <Smoothing weight={weight} />
      <label>
        <input type="checkbox" checked={log} onChange={() => setParams({ log: log ? null : "1" })} /> log
      </label>
    </>
  );
  return (
    <Chart
      name="Learning curves"
      lines={lines}
      legend={8}
      x={by === "seconds" ? "seconds" : "number"}
      xLabel={by === "seconds" ? "time" : by}
      log={log}
      range={range}
      onZoom={(r) => setParams({ zoom: r && writeRange(r) })}
      tools={tools}
      empty={answer.value && (told.ended != null ? "No trial was validated." : "No trial has been validated yet; curves appear with the first validation.")}
    />
  );
}

export function readRange(text: string): [number, number] | null {
  const [from, to] = text.split("~").map(Number);
  return to !== undefined && Number.isFinite(from) && Number.isFinite(to) ? [from!, to] : null;
}

export const writeRange = ([from, to]: [number, number]) => `${Number(from.toPrecision(6))}~${Number(to.toPrecision(6))}`;
