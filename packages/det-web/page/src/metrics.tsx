// A trial's metrics as charts: over batches, epochs or time, smoothed or not, each zoomed stretch asked for anew at its own width.
import { useMemo, useRef, useState } from "preact/hooks";
import { param, setParams } from "./address";
import { queried, type Series, type Trial } from "./api";
import { Chart, type Line, type Mark } from "./chart";
import { duration } from "./format";
import { ofTrials, useGet } from "./live";
import { Choice, Empty } from "./parts";
import { hue } from "./scales";
import { readRange, writeRange } from "./trials";

/** A running mean that weighs what came first as much as is due, so that a smoothed curve does not start at zero. */
export function smooth(y: (number | null)[], weight: number): (number | null)[] {
  let [sum, norm] = [0, 0];
  return y.map((value) => {
    if (value == null) return null;
    sum = sum * weight + (1 - weight) * value;
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}

export function Smoothing({ weight }: { weight: number }) {
  return (
    <label class="choice">
      smoothing{" "}
      <input
        type="range"
        min="0"
        max="0.99"
        step="0.01"
        value={weight}
        onInput={(event) => setParams({ smooth: event.currentTarget.value === "0" ? null : event.currentTarget.value })}
      />
    </label>
  );
}

/** What `loss`, `train_loss` and `val_loss` have in common: they are one quantity, and one picture. */
const quantity = (name: string) => name.replace(/^(val|valid|validation|train|training|eval)_(?=.)/, "");

export function MetricCharts({ told, system }: { told: Trial; system: boolean }) {
  const by = param("by", "batches");
  const weight = Number(param("smooth", "0"));
  const groups = Object.keys(told.metrics).filter((group) => (group !== "training" && group !== "validation") === system);
  const names = new Map<string, Source[]>(); // a quantity that several groups have is one picture
  if (!system && told.metric) names.set(quantity(told.metric), []); // its place is the first, also before it has been reported
  for (const group of groups)
    for (const name of told.metrics[group]!) {
      const same = names.get(quantity(name)) ?? [];
      // Two of one group are pictures of their own: a picture has a line for each group.
      const place = same.some((each) => each.group === group) ? name : quantity(name);
      names.set(place, [...(names.get(place) ?? []), { group, name }]);
    }
  // What has a place keeps it: a new metric comes behind those that are there, and a run that begins anew takes none away.
  const order = useRef<string[]>([]);
  order.current = [...new Set([...order.current, ...names.keys()])];
  if (!order.current.length)
    return system ? (
      <Empty>
        This trial reported nothing about its machine. <code>trainer.fit(profiling_enabled=True)</code> of a PyTorch trial, or <code>context.profiler.on()</code> of the
        Core API, samples processor, memory, disk, network and GPUs. Metrics of any group but training and validation are shown here too.
      </Empty>
    ) : (
      <Empty>
        {told.ended != null
          ? "It ended before it reported a metric."
          : "No metric has been reported yet; the first comes with the first report or validation."}
      </Empty>
    );
  return (
    <>
      <div class="tools">
        <Choice label="over" value={by} from={["batches", "epochs", ["seconds", "time"]]} onPick={(v) => setParams({ by: v === "batches" ? null : v, zoom: null })} />
        <Smoothing weight={weight} />
      </div>
      <div class="charts">
        {order.current.map((name) => (
          <Metric key={`${name} ${by}`} told={told} name={name} sources={names.get(name) ?? []} by={by} weight={weight} />
        ))}
      </div>
    </>
  );
}

/** A metric of a group. */
interface Source {
  group: string;
  name: string;
}

interface Asked {
  told: Trial;
  name: string;
  sources: Source[];
  by: string;
  weight: number;
}

function Metric({ told, name: place, sources, by, weight }: Asked) {
  const own = told.metric && quantity(told.metric) === place ? [told.metric] : [];
  const name = [...new Set(sources.length ? sources.map((each) => each.name) : own)].join(", ") || place;
  const [width, setWidth] = useState(0);
  const range = readRange(param("zoom"));
  const log = (param("log") || "").split(",").includes(name);
  const ask = (source?: Source) =>
    width && source ? `/trials/${told.id}/series${queried({ metric: source.name, group: source.group, width, by, from: range?.[0], to: range?.[1] })}` : null;
  const first = useGet<Series>(ask(sources[0]), ofTrials([told.id]));
  const second = useGet<Series>(ask(sources[1]), ofTrials([told.id]));
  // Until the zoomed stretch is there, what was seen before is stretched: the picture never goes blank.
  const [kept] = useState<(Series | undefined)[]>([undefined, undefined]);
  [first.value, second.value].forEach((value, i) => (kept[i] = value ?? kept[i]));
  const lines = useMemo(
    () =>
      sources.slice(0, 2).flatMap(({ group }, i): Line[] => {
        const series = kept[i];
        if (!series) return [];
        const line = { label: group, x: series.x, y: series.y, color: hue(group === "validation" ? 1 : 0), dots: group === "validation" && series.n < 60 };
        return weight ? [{ ...line, label: `${group}, as reported`, alpha: 0.3 }, { ...line, y: smooth(series.y, weight), width: 2 }] : [line];
      }),
    [kept[0], kept[1], weight],
  );
  const marks = useMemo((): Mark[] => {
    const best = kept[sources.findIndex((each) => each.group === "validation" && each.name === told.metric)]?.best;
    return [...(best ? [{ x: best[0], y: best[1], text: "best validation", color: "#16a34a" }] : []), ...restarts(told, by)];
  }, [told, by, kept[0], kept[1]]);
  const others = (param("log") || "").split(",").filter((each) => each && each !== name);
  return (
    <Chart
      name={name}
      lines={lines}
      marks={marks}
      x={by === "seconds" ? "seconds" : "number"}
      xLabel={by === "seconds" ? "time" : by}
      log={log}
      range={range}
      onZoom={(r) => setParams({ zoom: r && writeRange(r) })}
      onWidth={setWidth}
      height={240}
      empty={sources.length ? undefined : told.ended != null ? "It was never reported." : "Nothing has been reported yet."}
      tools={
        <label>
          <input type="checkbox" checked={log} onChange={() => setParams({ log: (log ? others : [...others, name]).join(",") })} /> log
        </label>
      }
    />
  );
}

/** Where each run after the first began, and why the one before it ended. */
function restarts({ runs }: Trial, by: string): Mark[] {
  const start = runs[0]?.started ?? 0;
  return runs.slice(1).flatMap((run, i) => {
    const x = by === "seconds" ? run.started - start : by === "batches" ? run.from : null;
    const why = runs[i]!.why ?? `run ${runs[i]!.number} ended`;
    return x == null ? [] : [{ x, text: `run ${run.number} after ${duration(run.started - start)}: ${why}`, color: "#dc2626" }];
  });
}
