// The list of all experiments.
import { useBoards } from "./actions";
import { A, param, setParams } from "./address";
import { duration, num, percent, time } from "./format";
import { useRows, type Rows } from "./live";
import { Empty, Loaded, Progress, State } from "./parts";
import { Table, type Column } from "./table";

const SEARCHED = ["id", "name", "labels", "note", "searcher", "metric", "space"];

export function Experiments() {
  const answer = useRows("/experiments", (change) => change.kind === "experiments");
  return (
    <main>
      <h1 class="visually-hidden">Experiments</h1>
      <Loaded answer={answer}>{(rows) => (rows.n ? <List rows={rows} /> : <First />)}</Loaded>
    </main>
  );
}

function First() {
  return (
    <Empty>
      No experiment is in this home yet. <code>det run CONFIG.yaml</code> starts one, and it appears here by itself; <code>det run --ui</code> opens this
      page with it.
    </Empty>
  );
}

/** A column with the values that the server keeps in another form: a hyperparameter of the best trial by its own name. */
function withHparams(rows: Rows): Rows {
  const best = rows.columns.best_hparams as Record<string, never>[] | undefined;
  if (!best) return rows;
  const columns = { ...rows.columns };
  for (const name of new Set(best.flatMap((each) => Object.keys(each ?? {}))))
    columns[name in rows.columns ? `hparams.${name}` : name] = best.map((each) => each?.[name]);
  return { ...rows, columns };
}

function List({ rows: given }: { rows: Rows }) {
  const boards = useBoards();
  const rows = withHparams(given);
  const c = rows.columns;
  const archived = param("archived") === "1";
  const seconds = (i: number) => (c.seconds?.[i] as number) ?? (c.started?.[i] ? ((c.ended?.[i] as number) ?? Date.now() / 1000) - (c.started[i] as number) : null);
  const columns: Column[] = [
    { name: "id", width: 64, cell: (i) => <A to={`/e/${c.id![i]}/trials`}>{c.id![i] as number}</A> },
    { name: "name", width: 230, cell: (i) => <Named id={c.id![i] as number} name={c.name![i] as string} problem={c.problem?.[i] as string} /> },
    { name: "state", width: 120, cell: (i) => <State name={c.state![i] as string} orphaned={!!c.orphaned?.[i]} /> },
    { name: "progress", width: 150, cell: (i) => <Running share={c.progress![i] as number} /> },
    { name: "trials", width: 76, cell: (i) => num(c.trials![i] as number) },
    { name: "running", width: 90, hidden: true },
    { name: "best", width: 100, cell: (i) => num(c.best![i] as number) },
    { name: "metric", width: 150 },
    { name: "best_trial", title: "best trial", width: 100, cell: (i) => c.best_trial![i] != null && <A to={`/t/${c.best_trial![i]}`}>{c.best_trial![i] as number}</A> },
    { name: "searcher", width: 140 },
    { name: "labels", width: 180, cell: (i) => <Labels names={(c.labels![i] as string[]) ?? []} /> },
    { name: "created", width: 150, cell: (i) => time(c.created![i] as number) },
    { name: "seconds", title: "duration", width: 120, cell: (i) => duration(seconds(i)) },
    { name: "ended", width: 150, hidden: true, cell: (i) => time(c.ended![i] as number) },
    { name: "waiting", width: 200, hidden: true },
    { name: "note", width: 240, hidden: true },
    ...Object.keys(c).filter((name) => !(name in given.columns)).map((name) => ({ name, hidden: true })),
  ];
  const tools = (
    <label>
      <input type="checkbox" checked={archived} onChange={() => setParams({ archived: archived ? null : "1" })} /> archived
    </label>
  );
  return (
    <>
      {boards.after}
      <Table
        key={String(archived)}
        name="experiments"
        rows={rows}
        columns={columns}
        searched={SEARCHED}
        sort="-id"
        open={(id) => `/e/${id}/trials`}
        among={archived ? undefined : (i) => !c.archived?.[i]}
        tools={tools}
        choosing={{ title: "TensorBoard", act: boards.open }}
      />
    </>
  );
}

function Named({ id, name, problem }: { id: number; name: string; problem?: string }) {
  return (
    <A to={`/e/${id}/trials`} title={problem ?? name} class={problem ? "error" : undefined}>
      {problem ?? (name || "(no name)")}
    </A>
  );
}

function Running({ share }: { share: number | null }) {
  return (
    <span class="running">
      <Progress value={share} /> {percent(share)}
    </span>
  );
}

export function Labels({ names }: { names: string[] }) {
  return (
    <>
      {names.map((name) => (
        <A key={name} class="label" to={`/?q=${encodeURIComponent(name.includes(" ") ? `label:"${name}"` : `label:${name}`)}`}>
          {name}
        </A>
      ))}
    </>
  );
}
