// What one can do to an experiment or a trial; what cannot be taken back is asked about first, in a sentence that says what it does.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { go } from "./address";
import { get, send, type Experiment, type Trial } from "./api";
import { choose } from "./chosen";
import { Fork } from "./fork";
import { count, num, words } from "./format";
import { Markdown } from "./markdown";
import { Dialog, Form, Section } from "./parts";

type Act = () => Promise<unknown>;

interface Asked {
  title: string;
  text: string;
  button: string;
  act: Act;
  option?: { text: string; act: Act };
}

/** Buttons with the sentence of what went wrong below them. */
export function useActs(again: () => void) {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const [asked, ask] = useState<Asked | null>(null);
  const run = async (act: Act) => {
    setBusy(true);
    setProblem("");
    try {
      await act();
      again();
    } catch (error) {
      setProblem((error as Error).message);
    }
    setBusy(false);
  };
  const after: ComponentChildren = (
    <>
      {problem && (
        <p class="error" role="alert">
          {problem}
        </p>
      )}
      {asked && <Confirm asked={asked} run={run} close={() => ask(null)} />}
    </>
  );
  return { run, ask, busy, after };
}

function Confirm({ asked, run, close }: { asked: Asked; run: (act: Act) => Promise<void>; close: () => void }) {
  const [ticked, setTicked] = useState(false);
  const confirmed = () => {
    close();
    void run(ticked ? asked.option!.act : asked.act);
  };
  return (
    <Dialog title={asked.title} onClose={close}>
      <p>{asked.text}</p>
      {asked.option && (
        <p>
          <label>
            <input type="checkbox" checked={ticked} onChange={() => setTicked(!ticked)} /> {asked.option.text}
          </label>
        </p>
      )}
      <div class="actions">
        <button class="danger" onClick={confirmed}>
          {asked.button}
        </button>
        <button onClick={close}>Back</button>
      </div>
    </Dialog>
  );
}

/** TensorBoard on chosen experiments: a link to it once it is there, as a window that opens by itself is kept back. */
export function useBoards() {
  const [found, setFound] = useState<{ ids: number[]; address: string } | null>(null);
  const { run, after } = useActs(() => undefined);
  const open = (ids: number[]) =>
    void run(async () => {
      setFound(null);
      setFound({ ids, address: (await send<{ address: string }>("POST", "/tensorboard", { experiments: ids })).address });
    });
  const link = found && (
    <p role="status">
      <a href={found.address} target="_blank" rel="noopener">
        TensorBoard of {found.ids.join(", ")}
      </a>
    </p>
  );
  return {
    open,
    after: (
      <>
        {link}
        {after}
      </>
    ),
  };
}

/** What is done with several experiments at once: the result says of how many, and why the others were refused. Those stay chosen. */
export function useBulk() {
  const { run, ask, after } = useActs(() => undefined);
  const [labelled, label] = useState<number[] | null>(null);
  const [result, setResult] = useState<{ done: string; refused: string[] } | null>(null);
  const each = (ids: number[], done: string, act: (id: number) => Promise<unknown>): Act => async () => {
    setResult(null);
    const refused: string[] = [];
    for (const id of ids) await act(id).then(() => choose(id), (error: Error) => refused.push(`Experiment ${id}: ${error.message}`));
    setResult({ done: `${count(ids.length - refused.length, "experiment")} ${done}${refused.length ? `, ${num(refused.length)} refused` : ""}.`, refused });
  };
  const archive = (ids: number[], archived: boolean) =>
    void run(each(ids, archived ? "archived" : "unarchived", (id) => send("PATCH", `/experiments/${id}`, { archived })));
  const remove = (ids: number[]) =>
    ask({
      title: `Delete ${count(ids.length, "experiment")}?`,
      text: `Experiments ${ids.join(", ")}, their trials, metrics, logs and checkpoints are removed. This cannot be taken back.`,
      button: "Delete them",
      act: each(ids, "deleted", (id) => send("DELETE", `/experiments/${id}`)),
      option: { text: "keep the files of the checkpoints", act: each(ids, "deleted", (id) => send("DELETE", `/experiments/${id}?keep_checkpoints=true`)) },
    });
  return {
    acts: (archived: boolean) => [
      { title: "Archive", act: (ids: number[]) => archive(ids, true) },
      ...(archived ? [{ title: "Unarchive", act: (ids: number[]) => archive(ids, false) }] : []),
      { title: "Label or move", act: label },
      { title: "Delete", act: remove },
    ],
    after: (
      <>
        {result && (
          <div role="status" class={result.refused.length ? "error" : "empty"}>
            {result.done} <button onClick={() => setResult(null)}>Close</button>
            {result.refused.length > 0 && (
              <ul>
                {result.refused.map((each) => (
                  <li key={each}>{each}</li>
                ))}
              </ul>
            )}
          </div>
        )}
        {after}
        {labelled && (
          <Labelled
            ids={labelled}
            close={() => label(null)}
            save={(add, remove) =>
              run(
                each(labelled, "labelled", async (id) => {
                  const { labels } = await get<Experiment>(`/experiments/${id}`);
                  return send("PATCH", `/experiments/${id}`, { labels: [...new Set([...labels.filter((each) => !remove.has(each)), ...add])] });
                }),
              )
            }
          />
        )}
      </>
    ),
  };
}

/** Which labels some experiments lose and get. A project is a label, so to move is to lose one and get another. */
function Labelled({ ids, close, save }: { ids: number[]; close: () => void; save: (add: string[], remove: Set<string>) => Promise<void> }) {
  const [had, setHad] = useState<string[]>([]);
  const [lost, setLost] = useState<ReadonlySet<string>>(new Set());
  const [text, set] = useState("");
  useEffect(() => {
    void Promise.allSettled(ids.map((id) => get<Experiment>(`/experiments/${id}`))).then((found) =>
      setHad([...new Set(found.flatMap((each) => (each.status === "fulfilled" ? each.value.labels : [])))].sort()),
    );
  }, []);
  const toggle = (name: string) => {
    const next = new Set(lost);
    if (!next.delete(name)) next.add(name);
    setLost(next);
  };
  return (
    <Form
      title={`Label ${count(ids.length, "experiment")}, or move them to a project`}
      disabled={!text.trim() && !lost.size}
      close={close}
      save={() => save(words(text), new Set(lost))}
    >
      <p>A project is a label. Take away the one that they have, and add another.</p>
      {had.length > 0 && (
        <p role="group" aria-label="labels to take away">
          Take away:{" "}
          {had.map((name) => (
            <label key={name} class="label">
              <input type="checkbox" checked={lost.has(name)} aria-label={`take away ${name}`} onChange={() => toggle(name)} /> {name}
            </label>
          ))}
        </p>
      )}
      <input
        type="text"
        value={text}
        aria-label="labels to add, separated by commas"
        placeholder="labels to add, separated by commas"
        onInput={(event) => set(event.currentTarget.value)}
      />
    </Form>
  );
}

export function ExperimentActions({ told, again }: { told: Experiment; again: () => void }) {
  const { run, ask, busy, after } = useActs(again);
  const [window, open] = useState<"fork" | "name" | "labels" | null>(null);
  const boards = useBoards();
  const here = `/experiments/${told.id}`;
  const ended = !["ACTIVE", "PAUSED"].includes(told.state);
  const post = (what: string) => () => send("POST", `${here}/${what}`);
  const change = (what: object) => () => send("PATCH", here, what);
  const saved = (what: object) => send("PATCH", here, what).then(again);
  const cancel: Asked = {
    title: "Cancel the experiment?",
    text: "Running trials save a checkpoint and stop; the search does not go on. What was found stays.",
    button: "Cancel it",
    act: post("cancel"),
  };
  const kill: Asked = {
    title: "Kill the experiment?",
    text: "Running trials are stopped at once: what they trained since their last checkpoint is lost.",
    button: "Kill it",
    act: post("kill"),
  };
  const remove = (keep: string): Act => async () => {
    await send("DELETE", `${here}${keep}`);
    go("/", true);
  };
  const del: Asked = {
    title: `Delete experiment ${told.id}?`,
    text: `${told.name || "It"}, its ${count(told.trials, "trial")}, metrics, logs and checkpoints are removed. This cannot be taken back.`,
    button: "Delete it",
    act: remove(""),
    option: { text: "keep the files of the checkpoints", act: remove("?keep_checkpoints=true") },
  };
  return (
    <div>
      <div class="actions" role="group" aria-label="actions">
        {told.state === "ACTIVE" && !told.orphaned && (
          <button disabled={busy} onClick={() => run(post("pause"))}>
            Pause
          </button>
        )}
        {(told.state === "PAUSED" || told.orphaned) && (
          <button disabled={busy} onClick={() => run(post("activate"))}>
            Activate
          </button>
        )}
        {!ended && <button onClick={() => ask(cancel)}>Cancel</button>}
        {!ended && (
          <button class="danger" onClick={() => ask(kill)}>
            Kill
          </button>
        )}
        <button onClick={() => boards.open([told.id])}>TensorBoard</button>
        <button onClick={() => open("fork")}>Fork</button>
        <button onClick={() => open("name")}>Rename</button>
        <button onClick={() => open("labels")}>Label</button>
        <button disabled={busy} onClick={() => run(change({ archived: !told.archived }))}>
          {told.archived ? "Unarchive" : "Archive"}
        </button>
        {ended && (
          <button class="danger" onClick={() => ask(del)}>
            Delete
          </button>
        )}
      </div>
      {after}
      {boards.after}
      {window === "fork" && <Fork told={told} close={() => open(null)} />}
      {window === "name" && (
        <Typed title="Rename" label="name" text={told.name} close={() => open(null)} save={(name) => saved({ name })} />
      )}
      {window === "labels" && (
        <Typed
          title="Labels"
          label="labels, separated by commas"
          text={told.labels.join(", ")}
          close={() => open(null)}
          save={(text) => saved({ labels: words(text) })}
        />
      )}
    </div>
  );
}

export function TrialActions({ told, again }: { told: Trial; again: () => void }) {
  const { run, ask, busy, after } = useActs(again);
  const ended = ["COMPLETED", "ERROR", "CANCELED", "INVALID_HP"].includes(told.state);
  const post = (what: string) => () => send("POST", `/trials/${told.id}/${what}`);
  const goOn = async () => go(`/e/${(await send<{ id: number }>("POST", `/trials/${told.id}/continue`)).id}/trials`);
  const kill: Asked = {
    title: `Kill trial ${told.id}?`,
    text: "It is stopped at once: what it trained since its last checkpoint is lost. The search goes on without it.",
    button: "Kill it",
    act: post("kill"),
  };
  return (
    <div>
      <div class="actions" role="group" aria-label="actions">
        {!ended && (
          <button class="danger" onClick={() => ask(kill)}>
            Kill
          </button>
        )}
        {ended && told.state !== "INVALID_HP" && (
          <button disabled={busy} onClick={() => run(goOn)} title="a new experiment that goes on from this trial’s checkpoint">
            Continue
          </button>
        )}
      </div>
      {after}
    </div>
  );
}

function Typed(props: { title: string; label: string; text: string; close: () => void; save: (text: string) => Promise<unknown> }) {
  const [text, set] = useState(props.text);
  return (
    <Form title={props.title} close={props.close} save={() => props.save(text)}>
      <input type="text" value={text} aria-label={props.label} placeholder={props.label} onInput={(event) => set(event.currentTarget.value)} />
    </Form>
  );
}

/** The note of an experiment: Markdown that is typed beside what it will look like. */
export function Note({ told, again }: { told: Experiment; again: () => void }) {
  const [text, setText] = useState<string | null>(null);
  const { run, busy, after } = useActs(again);
  if (text === null && !told.note)
    return (
      <p class="dim">
        <button onClick={() => setText("")}>Write a note</button>
      </p>
    );
  const save = () =>
    run(async () => {
      await send("PATCH", `/experiments/${told.id}`, { note: text });
      setText(null);
    });
  return (
    <Section title="Note" tools={text === null && <button onClick={() => setText(told.note)}>Edit</button>}>
      <Markdown text={text ?? told.note} />
      {text !== null && (
        <div class="edited">
          <textarea value={text} aria-label="note, in Markdown" onInput={(event) => setText(event.currentTarget.value)} />
          <div class="actions">
            <button disabled={busy} onClick={save}>
              Save
            </button>
            <button onClick={() => setText(null)}>Back</button>
          </div>
        </div>
      )}
      {after}
    </Section>
  );
}
