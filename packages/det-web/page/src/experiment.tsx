// One experiment: what it is and how it stands, and its sections.
import type { ComponentChildren } from "preact";
import { ExperimentActions, Note } from "./actions";
import { go } from "./address";
import type { Experiment as Told } from "./api";
import { CompareBest } from "./compare";
import { Code } from "./code";
import { CheckpointsTable, Configuration } from "./details";
import { Labels } from "./experiments";
import { count, duration, num, percent, time } from "./format";
import { useKeys } from "./keys";
import { ofExperiment, useGet } from "./live";
import { Logs } from "./logs";
import { Loaded, Progress, State, Tabs } from "./parts";
import { SearchPicture } from "./search";
import { Trials } from "./trials";
import { A } from "./address";

const SECTIONS = ["trials", "search", "compare", "code", "checkpoints", "config", "logs"];

export function Experiment({ id, section }: { id: number; section: string }) {
  const answer = useGet<Told>(`/experiments/${id}`, ofExperiment(id));
  const step = (by: number) => go(`/e/${id}/${SECTIONS[(SECTIONS.indexOf(section) + by + SECTIONS.length) % SECTIONS.length]}`);
  useKeys({ "[": () => step(-1), "]": () => step(1) }, [id, section]);
  return (
    <main>
      <Loaded answer={answer}>
        {(told) => (
          <>
            <Heading told={told} again={answer.again} />
            <Tabs base={`/e/${id}`} names={SECTIONS} chosen={section} />
            {shown(section, told, answer.again)}
          </>
        )}
      </Loaded>
    </main>
  );
}

function shown(section: string, told: Told, again: () => void): ComponentChildren {
  const { id } = told;
  if (section === "search") return <SearchPicture told={told} />;
  if (section === "compare") return <CompareBest told={told} />;
  if (section === "code") return <Code id={id} />;
  if (section === "checkpoints") return <CheckpointsTable told={told} />;
  if (section === "config") return <Configuration told={told} />;
  if (section === "logs") return <Logs told={told} />;
  return (
    <>
      <Note told={told} again={again} />
      <Trials told={told} />
    </>
  );
}

function Heading({ told, again }: { told: Told; again: () => void }) {
  const seconds = told.seconds ?? (told.started ? (told.ended ?? Date.now() / 1000) - told.started : null);
  return (
    <header class="heading">
      <div>
        <h1>
          <small>{told.id}</small> {told.name || "(no name)"}
        </h1>
        <p class="facts">
          <State name={told.state} orphaned={told.orphaned} />
          <span>
            <Progress value={told.progress} /> {percent(told.progress)}
          </span>
          <span>{count(told.trials, "trial")}</span>
          <span>{told.searcher}</span>
          <span>
            best {told.metric}: <b>{num(told.best)}</b>
            {told.best_trial != null && (
              <>
                {" "}
                by <A to={`/t/${told.best_trial}`}>trial {told.best_trial}</A>
              </>
            )}
          </span>
          <span title={`created ${time(told.created)}`}>{duration(seconds)}</span>
          <Labels names={told.labels} />
        </p>
        {told.why && told.state !== "COMPLETED" && <p class="why">{told.why}</p>}
        {told.problem && <p class="error">{told.problem}</p>}
      </div>
      <ExperimentActions told={told} again={again} />
    </header>
  );
}
