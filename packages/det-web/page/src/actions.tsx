// What one can do to an experiment or a trial; what cannot be taken back is asked about first, in a sentence that says what it does.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { go } from "./address";
import { send, type Experiment, type Trial } from "./api";
import { Fork } from "./fork";
import { count } from "./format";
import { Markdown } from "./markdown";
import { Dialog, Section } from "./parts";

type Act = () => Promise<unknown>;

interface Asked {
  title: string;
  text: string;
  button: string;
  act: Act;
  option?: { text: string; act: Act };
}

/** Buttons with the sentence of what went wrong below them. */
function useActs(again: () => void) {
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

export function ExperimentActions({ told, again }: { told: Experiment; again: () => void }) {
  const { run, ask, busy, after } = useActs(again);
  const [window, open] = useState<"fork" | "name" | "labels" | null>(null);
  const boards = useBoards();
  const here = `/experiments/${told.id}`;
  const ended = !["ACTIVE", "PAUSED"].includes(told.state);
  const post = (what: string) => () => send("POST", `${here}/${what}`);
  const change = (what: object) => () => send("PATCH", here, what);
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
        <Typed title="Rename" label="name" text={told.name} close={() => open(null)} save={(name) => run(change({ name }))} />
      )}
      {window === "labels" && (
        <Typed
          title="Labels"
          label="labels, separated by commas"
          text={told.labels.join(", ")}
          close={() => open(null)}
          save={(text) => run(change({ labels: [...new Set(text.split(",").map((each) => each.trim()).filter(Boolean))] }))}
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

function Typed(props: { title: string; label: string; text: string; close: () => void; save: (text: string) => void }) {
  const [text, set] = useState(props.text);
  const submit = (event: Event) => {
    event.preventDefault();
    props.save(text);
    props.close();
  };
  return (
    <Dialog title={props.title} onClose={props.close}>
      <form onSubmit={submit}>
        <input type="text" value={text} aria-label={props.label} placeholder={props.label} onInput={(event) => set(event.currentTarget.value)} />
        <div class="actions">
          <button>Save</button>
          <button type="button" onClick={props.close}>
            Back
          </button>
        </div>
      </form>
    </Dialog>
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
