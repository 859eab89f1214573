// The checkpoints of an experiment with their sizes, and its configuration with what was not said and so took its default.
import type { VNode } from "preact";
import { A } from "./address";
import type { Checkpoints, Experiment } from "./api";
import { num, show, size, state, time, type Value } from "./format";
import { ofExperiment, useGet, type Rows } from "./live";
import { Copied, Empty, Loaded, Section } from "./parts";
import { Table } from "./table";

export function CheckpointsTable({ told: { id, ended } }: { told: Experiment }) {
  const answer = useGet<Checkpoints | { columns: Checkpoints }>(`/experiments/${id}/checkpoints`, ofExperiment(id));
  return (
    <Loaded answer={answer}>
      {(sent) => {
        const c = "columns" in sent ? sent.columns : sent;
        const n = c.uuid.length;
        if (!n) return <Empty>{ended != null ? "It ended without a checkpoint." : "No checkpoint yet; one is written when training pauses or ends, and where the configuration says so."}</Empty>;
        const total = c.size.reduce<number>((sum, bytes, i) => sum + (c.state[i] === "COMPLETED" ? (bytes ?? 0) : 0), 0);
        // The table opens a row by its number: that of the trial, which loads and describes it.
        const ids = c.uuid.map((_, i) => i);
        const rows: Rows = { version: "", n, columns: { ...c, id: ids } as never, at: new Map(), hparams: [] };
        const kept = c.state.filter((each) => each === "COMPLETED").length;
        return (
          <>
            <p>
              {num(kept)} on the disk, {size(total)} together.
            </p>
            <Table
              name={`checkpoints of experiment ${id}`}
              rows={rows}
              searched={["uuid", "state", "trial"]}
              sort="-created"
              open={(i) => `/t/${c.trial[i]}/metrics`}
              columns={[
                { name: "trial", width: 80, cell: (i) => <A to={`/t/${c.trial[i]}/metrics`}>{c.trial[i]}</A> },
                { name: "batches", width: 100, cell: (i) => num(c.batches[i]) },
                { name: "metric", width: 150, cell: (i) => <>{num(c.metric[i])}{c.best[i] && <b class="best"> best</b>}</> },
                { name: "size", width: 100, number: true, cell: (i) => size(c.size[i]) },
                { name: "state", width: 130, cell: (i) => state(c.state[i]) },
                { name: "created", width: 150, cell: (i) => time(c.created[i]) },
                {
                  name: "download",
                  width: 100,
                  cell: (i) =>
                    c.state[i] === "COMPLETED" && (
                      <a href={`/api/v1/experiments/${id}/checkpoints/${c.uuid[i]}`} download>
                        tar
                      </a>
                    ),
                },
                { name: "uuid", title: "id", width: 320, cell: (i) => <code>{c.uuid[i]}</code> },
              ]}
            />
          </>
        );
      }}
    </Loaded>
  );
}

export function Configuration({ told }: { told: Experiment }) {
  const defaulted = new Set(told.defaulted);
  return (
    <div class="columns">
      <Section title="As written">
        <Copied text={told.source} />
      </Section>
      <Section title="In effect">
        <p class="dim">What is dim was not written and has its default.</p>
        <table class="plain config">
          <tbody>{leaves(told.config, "", defaulted)}</tbody>
        </table>
      </Section>
      {Object.keys(told.elsewhere).length > 0 && (
        <Section title="From elsewhere">
          <p class="dim">What det migrate has kept of the system where it was trained.</p>
          <table class="plain config">
            <tbody>{leaves(told.elsewhere, "", new Set())}</tbody>
          </table>
        </Section>
      )}
    </div>
  );
}

/** Whether a key, or one that it is below, was left to its default. */
const isDefault = (key: string, defaulted: Set<string>): boolean =>
  defaulted.has(key) || (key.includes(".") && isDefault(key.slice(0, key.lastIndexOf(".")), defaulted));

function leaves(config: { [key: string]: Value }, before: string, defaulted: Set<string>) {
  return Object.entries(config).flatMap(([key, value]): VNode[] => {
    const name = before + key;
    if (value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) return leaves(value, `${name}.`, defaulted);
    return [
      <tr key={name} class={isDefault(name, defaulted) ? "dim" : undefined}>
        <th scope="row">{name}</th>
        <td>{show(value)}</td>
      </tr>,
    ];
  });
}
