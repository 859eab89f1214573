// The logs of an experiment: what all its trials wrote, run by run as they began, and its driver's.
import type { ComponentChildren } from "preact";
import { A, param, setParams } from "./address";
import { get, type Experiment, type LogEnd } from "./api";
import { settled, size, time } from "./format";
import { ofExperiment, useLive } from "./live";
import { Log } from "./log";
import { Choice, Empty, Loaded } from "./parts";

interface Ends {
  logs: LogEnd[];
  left_out: number;
}

export function Logs({ told }: { told: Experiment }) {
  const of = param("of", "trials");
  const choice = <Choice label="of" value={of} from={["trials", "driver"]} onPick={(v) => setParams({ of: v === "trials" ? null : v, at: null, find: null })} />;
  if (of === "driver")
    return <Log address={`/experiments/${told.id}/log`} name={`driver of experiment ${told.id}`} live={ofExperiment(told.id)} growing={told.state === "ACTIVE"} tools={choice} />;
  return <OfTrials told={told} choice={choice} />;
}

function OfTrials({ told, choice }: { told: Experiment; choice: ComponentChildren }) {
  const answer = useLive<Ends>(`/experiments/${told.id}/logs`, () => get(`/experiments/${told.id}/logs`), ofExperiment(told.id));
  const wanted = param("find").toLowerCase();
  const shown = (text: string) => (wanted ? text.split("\n").filter((line) => line.toLowerCase().includes(wanted)).join("\n") : text);
  return (
    <section aria-label={`logs of experiment ${told.id}`}>
      <div class="tools">
        {choice}
        <input type="search" value={param("find")} placeholder="only lines with" aria-label="only lines with" onInput={(e) => setParams({ find: e.currentTarget.value })} />
        <button onClick={answer.again}>Read again</button>
      </div>
      <Loaded answer={answer}>
        {({ logs, left_out }) => (
          <>
            {left_out > 0 && <p class="dim">{left_out} logs of earlier runs are not here; those trials' own pages have them.</p>}
            {!logs.length && <Empty>{told.ended != null ? "No trial wrote anything." : "No trial has written anything yet."}</Empty>}
            <div class="log" tabIndex={0} role="log" aria-label={`logs of experiment ${told.id}`}>
              {logs.map(({ trial, run, rank, started, ended, why, log }) => {
                const text = shown(settled(log.text));
                if (wanted && !text) return null;
                return (
                  <article key={`${trial} ${run} ${rank}`}>
                    <h3>
                      <A to={`/t/${trial}/logs?run=${run}&rank=${rank}`}>
                        trial {trial} run {run} rank {rank}
                      </A>{" "}
                      <small>
                        {time(started, true)} – {ended ? time(ended, true) : "now"}
                        {log.offset > 0 && `; the end of ${size(log.size)}`}
                      </small>
                    </h3>
                    <pre>{text || "(nothing was printed)"}</pre>
                    {why && <p class="error">{why}</p>}
                  </article>
                );
              })}
            </div>
          </>
        )}
      </Loaded>
    </section>
  );
}
