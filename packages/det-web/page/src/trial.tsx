// One trial: how it stands, its hyperparameters, its runs, and its sections.
import { useState } from "preact/hooks";
import { TrialActions } from "./actions";
import { A, go } from "./address";
import { mayChange, type Experiment, type Trial as Told } from "./api";
import { count, duration, num, show, size, time } from "./format";
import { useKeys } from "./keys";
import { Later } from "./lazy";
import { ofTrials, useGet } from "./live";
import { Log } from "./log";
import { Media } from "./media";
import { param, setParams } from "./address";
import { Choice, Copied, Empty, Loaded, Section, State, Tabs } from "./parts";
import { MetricCharts } from "./metrics";

const SECTIONS = ["metrics", "media", "logs", "system"];

export function Trial({ id, section }: { id: number; section: string }) {
  const answer = useGet<Told>(`/trials/${id}`, ofTrials([id]));
  const of = useGet<Experiment>(answer.value ? `/experiments/${answer.value.experiment}` : null);
  const step = (by: number) => go(`/t/${id}/${SECTIONS[(SECTIONS.indexOf(section) + by + SECTIONS.length) % SECTIONS.length]}`);
  useKeys({ "[": () => step(-1), "]": () => step(1) }, [id, section]);
  return (
    <main>
      <Loaded answer={answer}>
        {(told) => (
          <>
            <Heading told={told} of={of.value} again={answer.again} />
            {told.failure?.text && section !== "logs" && <Failure told={told} {...told.failure} />}
            <Tabs base={`/t/${id}`} names={SECTIONS} chosen={section} />
            {section === "logs" && <RankLogs told={told} />}
            {section === "media" && <Media id={told.id} />}
            {section !== "logs" && section !== "media" && <MetricCharts key={section} told={told} system={section === "system"} />}
            {section === "system" && <Traces told={told} />}
            {section === "metrics" && <About told={told} of={of.value} />}
          </>
        )}
      </Loaded>
    </main>
  );
}

function Heading({ told, of, again }: { told: Told; of?: Experiment; again: () => void }) {
  return (
    <header class="heading">
      <div>
        <h1>
          <A to={`/e/${told.experiment}/trials`}>
            <small>{told.experiment}</small> {of?.name ?? `experiment ${told.experiment}`}
          </A>{" "}
          / trial {told.id}
        </h1>
        <p class="facts">
          <State name={told.state} />
          <span>{count(told.runs.length, "run")}</span>
          {told.parent != null && (
            <span>
              copied from <A to={`/t/${told.parent}`}>trial {told.parent}</A>
            </span>
          )}
          {told.batches != null && <span>{count(told.batches, "batch").replace("batchs", "batches")}</span>}
          {told.best != null && (
            <span>
              best {of?.metric}: <b>{num(told.best)}</b>
              {told.best_batches != null && ` at ${num(told.best_batches)}`}
            </span>
          )}
        </p>
        {told.why && told.state !== "COMPLETED" && <p class="why">{told.why}</p>}
      </div>
      <TrialActions told={told} again={again} />
    </header>
  );
}

/** What a failed trial wrote last comes first: nothing else on the page says why there is nothing else. */
function Failure({ told, run, rank, text }: { told: Told; run: number; rank: number; text: string }) {
  const tools = <A to={`/t/${told.id}/logs?run=${run}&rank=${rank}`}>the whole log</A>;
  return (
    <Section title={`What run ${run} wrote last`} tools={tools}>
      <pre class="failure">{text}</pre>
    </Section>
  );
}

function About({ told, of }: { told: Told; of?: Experiment }) {
  const constant = new Set(of?.space.filter(({ type }) => type === "const").map(({ name }) => name));
  const best = told.checkpoints.some(({ state }) => state === "COMPLETED");
  const [registered, register] = useState<string | null>(null);
  return (
    <div class="columns">
      <Section title="Hyperparameters">
        <table class="plain">
          <tbody>
            {flat(told.hparams).map(([name, value]) => (
              <tr key={name} class={constant.has(name) ? "dim" : undefined}>
                <th scope="row">{name}</th>
                <td>{show(value as never)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Section>
      <Section title="Runs">
        <table class="plain runs">
          <thead>
            <tr>
              <th>run</th>
              <th>state</th>
              <th>host</th>
              <th>started</th>
              <th>duration</th>
              <th>why it ended</th>
            </tr>
          </thead>
          <tbody>
            {told.runs.map((run) => (
              <tr key={run.id}>
                <td>
                  <A to={`/t/${told.id}/logs?run=${run.number}`}>{run.number}</A>
                </td>
                <td>
                  <State name={run.state} />
                </td>
                <td>{run.host ?? "–"}</td>
                <td>{time(run.started)}</td>
                <td>{duration((run.ended ?? Date.now() / 1000) - run.started)}</td>
                <td class="why">{run.why ?? ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Section>
      <Section title="Checkpoints">
        {told.checkpoints.length ? (
          <table class="plain">
            <thead>
              <tr>
                <th>batches</th>
                <th>{of?.metric ?? "metric"}</th>
                <th>size</th>
                <th>id</th>
              </tr>
            </thead>
            <tbody>
              {told.checkpoints.map((each) => (
                <tr key={each.uuid} class={each.state === "COMPLETED" ? undefined : "dim"}>
                  <td>{num(each.batches)}</td>
                  <td>
                    {num(each.metric)}
                    {each.best && <b class="best"> best</b>}
                  </td>
                  <td>
                    {each.state === "COMPLETED" ? (
                      <a href={`/api/v1/experiments/${told.experiment}/checkpoints/${each.uuid}`} download title="download as a tar archive">
                        {size(each.size)}
                      </a>
                    ) : (
                      "deleted"
                    )}
                  </td>
                  <td>
                    <code>{each.uuid}</code>{" "}
                    {each.state === "COMPLETED" && mayChange() && (
                      <button aria-label={`add checkpoint ${each.uuid} to a model`} onClick={() => register(each.uuid)}>
                        Add to a model
                      </button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        ) : (
          <Empty>
            {told.ended != null
              ? "It ended without a checkpoint."
              : "No checkpoint yet; one is written when training pauses or ends, and where the configuration says so."}
          </Empty>
        )}
        {best && told.load && <Copied text={told.load} />}
        {registered && <Later name="add-version" uuid={registered} close={() => register(null)} />}
      </Section>
    </div>
  );
}

function Traces({ told }: { told: Told }) {
  return (
    <Section title="Profiler's traces">
      {told.traces.length ? (
        <>
          <table class="plain">
            <tbody>
              {told.traces.map(({ name, size: bytes }) => (
                <tr key={name}>
                  <td>
                    <a href={`/api/v1/trials/${told.id}/traces/${name.split("/").map(encodeURIComponent).join("/")}`} download>
                      {name}
                    </a>
                  </td>
                  <td>{size(bytes)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          <p>Open one in Perfetto, in chrome://tracing, or in TensorBoard.</p>
        </>
      ) : (
        <Empty>No trace has been written; context.set_profiler in a PyTorch trial asks for one.</Empty>
      )}
    </Section>
  );
}

/** Nested hyperparameters by dotted names. */
function flat(values: object, before = ""): [string, unknown][] {
  return Object.entries(values).flatMap(([name, value]) =>
    value && typeof value === "object" && !Array.isArray(value) ? flat(value, `${before}${name}.`) : [[before + name, value] as [string, unknown]],
  );
}

function RankLogs({ told }: { told: Told }) {
  const runs = told.runs.filter(({ ranks }) => ranks.length);
  const run = runs.find(({ number }) => String(number) === param("run")) ?? runs.at(-1);
  if (!run) return <Empty>{told.ended != null ? "Nothing was printed: no run of this trial ever started." : "Nothing has been printed: no run of this trial has started yet."}</Empty>;
  const rank = run.ranks.find((each) => String(each.rank) === param("rank", "0")) ?? run.ranks[0]!;
  const tools = (
    <>
      <Choice label="run" value={String(run.number)} from={runs.map((each) => String(each.number))} onPick={(v) => setParams({ run: v })} />
      <Choice
        label="rank"
        value={String(rank.rank)}
        from={run.ranks.map((each) => [String(each.rank), `${each.rank} (${size(each.size)})`])}
        onPick={(v) => setParams({ rank: v })}
      />
    </>
  );
  return (
    <Log
      key={`${run.id} ${rank.rank}`}
      address={`/trials/${told.id}/log`}
      query={{ run: run.number, rank: rank.rank }}
      name={`log of trial ${told.id}, rank ${rank.rank}`}
      live={ofTrials([told.id])}
      growing={run.ended == null}
      tools={tools}
    />
  );
}
