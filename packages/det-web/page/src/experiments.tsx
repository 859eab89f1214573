// The list of all experiments.
import { useBoards, useBulk } from "./actions";
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
  const bulk = useBulk();
  const rows = withHparams(given);
  const c = rows.columns;
  const archived = param("archived") === "1";
  const seconds = (i: number) => (c.seconds?.[i] as number) ?? (c.started?.[i] ? ((c.ended?.[i] as number) ?? Date.now() / 1000) - (c.started[i] as number) : null);
  const narrow = matchMedia("(max-width: 640px)").matches;
  const listed: Column[] = [
    { name: "id", width: narrow ? 52 : 60, cell: (i) => <A to={`/e/${c.id![i]}/trials`}>{c.id![i] as number}</A> },
    { name: "name", width: narrow ? 96 : 160, cell: (i) => <Named id={c.id![i] as number} name={c.name![i] as string} problem={c.problem?.[i] as string} /> },
    { name: "state", width: narrow ? 98 : 108, cell: (i) => <State name={c.state![i] as string} orphaned={!!c.orphaned?.[i]} /> },
    { name: "progress", title: "progress", width: 156, cell: (i) => <Running state={c.state![i] as string} share={c.progress![i] as number} why={(c.why?.[i] as string) || ""} /> },
    { name: "trials", width: 68, number: true, cell: (i) => num(c.trials![i] as number) },
    { name: "running", width: 90, hidden: true },
    { name: "best", width: 88, number: true, cell: (i) => num(c.best![i] as number) },
    { name: "metric", width: 92 },
    { name: "best_trial", title: "by trial", width: 76, cell: (i) => c.best_trial![i] != null && <A to={`/t/${c.best_trial![i]}`}>{c.best_trial![i] as number}</A> },
    { name: "searcher", width: 132 },
    { name: "labels", width: 108, hidden: !c.labels?.some((each) => (each as string[] | null)?.length), cell: (i) => <Labels names={(c.labels![i] as string[]) ?? []} /> },
    { name: "created", width: 150, cell: (i) => time(c.created![i] as number) },
    { name: "seconds", title: "duration", width: 104, number: true, cell: (i) => duration(seconds(i)) },
    { name: "ended", width: 150, hidden: true, cell: (i) => time(c.ended![i] as number) },
    { name: "waiting", width: 200, hidden: true },
    { name: "why", width: 260, hidden: true },
    { name: "note", width: 240, hidden: true },
    ...Object.keys(c).filter((name) => !(name in given.columns)).map((name) => ({ name, hidden: true })),
  ];
  // On a phone what one looks for comes first.
  const early = ["id", "name", "best", "state"];
  const columns = narrow ? [...early.map((name) => listed.find((each) => each.name === name)!), ...listed.filter(({ name }) => !early.includes(name))] : listed;
  const tools = (
    <label>
      <input type="checkbox" checked={archived} onChange={() => setParams({ archived: archived ? null : "1" })} /> archived
    </label>
  );
  return (
    <>
      {boards.after}
      {bulk.after}
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
        acts={bulk.acts(archived)}
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

function Running({ state, share, why }: { state: string; share: number | null; why: string }) {
  // How far a failed search was planned to go says nothing; why it failed does.
  if (state === "ERROR") return <span class="failed" title={why}>{why || "it does not say why"}</span>;
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
