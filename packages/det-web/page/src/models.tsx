// The registry: models, their versions with links to checkpoints and metrics, aliases and notes.
import { useState } from "preact/hooks";
import { useActs } from "./actions";
import { A, go, param, path, setParams } from "./address";
import { about, mayChange, send } from "./api";
import { count, NONE, num, size, time, words } from "./format";
import { useGet } from "./live";
import { Markdown } from "./markdown";
import { Empty, Form, Loaded, Section } from "./parts";

interface Model {
  name: string;
  description: string;
  notes: string;
  labels: string[];
  archived: boolean;
  updated: number;
  versions: number;
  latest: number | null;
  aliases: Record<string, number>;
}

interface Version {
  version: number;
  name: string;
  notes: string;
  aliases: string[];
  created: number;
  uuid: string;
  experiment: number | null;
  trial: number | null;
  batches: number | null;
  metric: number | null;
  size: number | null;
  state: string | null;
}

interface Told {
  model: Model;
  versions: Version[];
}

const mayDelete = () => (about.value?.role ?? "admin") === "admin";
const addressOf = (name: string) => `/models/${encodeURIComponent(name)}`;

export function Models() {
  const name = path.value.split("/")[2];
  return name ? <One key={name} address={`/models/${name}`} /> : <All />;
}

function All() {
  const answer = useGet<{ models: Model[] }>("/models");
  const [making, make] = useState(false);
  const archived = param("archived") === "1";
  return (
    <main>
      <h1>Models</h1>
      <div class="tools">
        {mayChange() && <button onClick={() => make(true)}>New model</button>}
        <label>
          <input type="checkbox" checked={archived} onChange={() => setParams({ archived: archived ? null : "1" })} /> archived
        </label>
      </div>
      <Loaded answer={answer}>
        {({ models }) => {
          const shown = models.filter((each) => archived || !each.archived);
          if (!shown.length)
            return (
              <Empty>
                No model is here. A model names checkpoints as versions, and keeps them: make one, and add a version from the checkpoints of a trial’s page, or with{" "}
                <code>det model add-version</code>.
              </Empty>
            );
          return (
            <div class="scrolled">
              <table class="plain">
                <thead>
                  <tr>
                    <th>name</th>
                    <th class="number">versions</th>
                    <th>aliases</th>
                    <th>labels</th>
                    <th>changed</th>
                    <th>description</th>
                  </tr>
                </thead>
                <tbody>
                  {shown.map((each) => (
                    <tr key={each.name} class={each.archived ? "dim" : undefined}>
                      <td>
                        <A to={addressOf(each.name)}>{each.name}</A>
                      </td>
                      <td class="number">{num(each.versions)}</td>
                      <td>{Object.entries(each.aliases).map(([alias, version]) => `${alias}: ${version}`).join(", ")}</td>
                      <td>{each.labels.join(", ")}</td>
                      <td class="whole">{time(each.updated)}</td>
                      <td>{each.description}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          );
        }}
      </Loaded>
      {making && (
        <Fields
          title="New model"
          fields={[["name"], ["description", "what it is for"]]}
          close={() => make(false)}
          save={async ({ name, description }) => go(addressOf((await send<Told>("POST", "/models", { name, description })).model.name))}
        />
      )}
    </main>
  );
}

type Window = { kind: "edit" | "notes" } | { kind: "alias" | "describe"; version: Version };

function One({ address }: { address: string }) {
  const answer = useGet<Told>(address);
  const { run, ask, busy, after } = useActs(answer.again);
  const [window, open] = useState<Window | null>(null);
  const change = async (what: object) => {
    const { model } = await send<Told>("PATCH", address, what);
    if (addressOf(model.name) !== address) go(addressOf(model.name), true);
    else answer.again();
  };
  return (
    <main>
      <Loaded answer={answer}>
        {({ model, versions }) => (
          <>
            <div class="heading">
              <div>
                <h1>
                  <small>
                    <A to="/models">model</A>
                  </small>{" "}
                  {model.name}
                </h1>
                <p class="facts">
                  <span>{count(model.versions, "version")}</span>
                  {model.labels.map((each) => (
                    <span class="label" key={each}>
                      {each}
                    </span>
                  ))}
                  {model.archived && <span>archived</span>}
                  <span>changed {time(model.updated)}</span>
                </p>
                {model.description && <p>{model.description}</p>}
              </div>
              {mayChange() && (
                <div class="actions" role="group" aria-label="actions">
                  <button onClick={() => open({ kind: "edit" })}>Edit</button>
                  <button disabled={busy} onClick={() => run(() => change({ archived: !model.archived }))}>
                    {model.archived ? "Unarchive" : "Archive"}
                  </button>
                  {mayDelete() && (
                    <button
                      class="danger"
                      onClick={() =>
                        ask({
                          title: `Delete model ${model.name}?`,
                          text: `The model with its ${count(model.versions, "version")} and aliases is removed. Its checkpoints stay, but nothing keeps them any more.`,
                          button: "Delete it",
                          act: async () => (await send("DELETE", address), go("/models", true)),
                        })
                      }
                    >
                      Delete
                    </button>
                  )}
                </div>
              )}
            </div>
            {after}
            <Section title="Versions">
              {versions.length ? (
                <div class="scrolled">
                  <table class="plain">
                    <thead>
                      <tr>
                        <th class="number">version</th>
                        {mayChange() && <th aria-label="actions" />}
                        <th>aliases</th>
                        <th>name</th>
                        <th class="number">metric</th>
                        <th>trial</th>
                        <th class="number">batches</th>
                        <th>checkpoint</th>
                        <th>created</th>
                        <th>notes</th>
                      </tr>
                    </thead>
                    <tbody>
                      {versions.map((each) => (
                        <tr key={each.version}>
                          <td class="number">{each.version}</td>
                          {mayChange() && (
                            <td class="whole">
                              <button aria-label={`alias of version ${each.version}`} onClick={() => open({ kind: "alias", version: each })}>
                                Alias
                              </button>{" "}
                              <button aria-label={`edit version ${each.version}`} onClick={() => open({ kind: "describe", version: each })}>
                                Edit
                              </button>{" "}
                              {mayDelete() && (
                                <button
                                  class="danger"
                                  aria-label={`delete version ${each.version}`}
                                  onClick={() =>
                                    ask({
                                      title: `Delete version ${each.version}?`,
                                      text: "Its checkpoint stays, but this version does not keep it any more.",
                                      button: "Delete it",
                                      act: () => send("DELETE", `${address}/versions/${each.version}`),
                                    })
                                  }
                                >
                                  Delete
                                </button>
                              )}
                            </td>
                          )}
                          <td class="whole">
                            {each.aliases.map((alias) => (
                              <span class="label" key={alias}>
                                {alias}
                                {mayChange() && (
                                  <button class="plainly" aria-label={`remove alias ${alias}`} onClick={() => run(() => send("PUT", `${address}/aliases/${encodeURIComponent(alias)}`, { version: null }))}>
                                    ×
                                  </button>
                                )}
                              </span>
                            ))}
                          </td>
                          <td>{each.name}</td>
                          <td class="number">{num(each.metric)}</td>
                          <td>{each.trial == null ? "is not here any more" : <A to={`/t/${each.trial}/metrics`}>{each.trial}</A>}</td>
                          <td class="number">{num(each.batches)}</td>
                          <td class="whole">
                            <code title={each.uuid}>{each.uuid.slice(0, 8)}</code>{" "}
                            {each.state === "COMPLETED" ? (
                              <a href={`/api/v1/experiments/${each.experiment}/checkpoints/${each.uuid}`} download title="download as a tar archive">
                                {size(each.size)}
                              </a>
                            ) : (
                              (each.state?.toLowerCase() ?? NONE)
                            )}
                          </td>
                          <td class="whole">{time(each.created)}</td>
                          <td>{each.notes}</td>
                        </tr>
                      ))}
                    </tbody>
                  </table>
                </div>
              ) : (
                <Empty>It has no version yet. Add one from the checkpoints of a trial’s page.</Empty>
              )}
            </Section>
            <Section title="Notes" tools={mayChange() && <button onClick={() => open({ kind: "notes" })}>{model.notes ? "Edit notes" : "Write notes"}</button>}>
              <Markdown text={model.notes} />
            </Section>
            {window?.kind === "edit" && (
              <Fields
                title={`Edit ${model.name}`}
                fields={[
                  ["name", "name", model.name],
                  ["description", "what it is for", model.description],
                  ["labels", "labels, separated by commas", model.labels.join(", ")],
                ]}
                close={() => open(null)}
                save={({ labels, ...texts }) => change(labels == null ? texts : { ...texts, labels: words(labels) })}
              />
            )}
            {window?.kind === "notes" && (
              <Fields title="Notes" fields={[["notes", "notes, in Markdown", model.notes]]} long close={() => open(null)} save={({ notes }) => change({ notes })} />
            )}
            {window?.kind === "alias" && (
              <Fields
                title={`An alias of version ${window.version.version}`}
                fields={[["alias", "alias, such as production; it moves here from another version"]]}
                close={() => open(null)}
                save={({ alias }) => send("PUT", `${address}/aliases/${encodeURIComponent(alias!)}`, { version: window.version.version }).then(answer.again)}
              />
            )}
            {window?.kind === "describe" && (
              <Fields
                title={`Edit version ${window.version.version}`}
                fields={[
                  ["name", "name", window.version.name],
                  ["notes", "notes", window.version.notes],
                ]}
                close={() => open(null)}
                save={(typed) => send("PATCH", `${address}/versions/${window.version.version}`, typed).then(answer.again)}
              />
            )}
          </>
        )}
      </Loaded>
    </main>
  );
}

type Field = [name: string, label?: string, text?: string];

/** A window with a few fields of text. Only those that were changed are saved: the others may have changed meanwhile. */
function Fields(props: { title: string; fields: Field[]; long?: boolean; close: () => void; save: (typed: Record<string, string>) => Promise<unknown> }) {
  const [typed, type] = useState(() => Object.fromEntries(props.fields.map(([name, , text]) => [name, text ?? ""])));
  const [before] = useState(() => new Map(props.fields.map(([name, , text]) => [name, text])));
  const save = async () => {
    const changed = Object.entries(typed).filter(([name, text]) => text !== before.get(name));
    if (changed.length) await props.save(Object.fromEntries(changed));
  };
  return (
    <Form title={props.title} close={props.close} save={save}>
      {props.fields.map(([name, label, text]) => {
        const shared = { value: typed[name], "aria-label": label ?? name, placeholder: label ?? name };
        const set = (event: { currentTarget: { value: string } }) => type({ ...typed, [name]: event.currentTarget.value });
        // A line of input drops the line breaks of a text that has some.
        return props.long || text?.includes("\n") ? <textarea key={name} {...shared} onInput={set} /> : <input key={name} type="text" {...shared} onInput={set} />;
      })}
    </Form>
  );
}

/** Makes a checkpoint a version of a model, of one that is there or of a new one. */
export function AddVersion({ uuid, close }: { uuid: string; close: () => void }) {
  const answer = useGet<{ models: Model[] }>("/models");
  const [typed, type] = useState({ name: "", aliases: "", notes: "" });
  const [made, setMade] = useState("");
  const add = async () => {
    // The version may be refused after its model was made, and is then sent again.
    if (typed.name !== made && !answer.value?.models.some(({ name }) => name === typed.name)) {
      await send("POST", "/models", { name: typed.name });
      setMade(typed.name);
    }
    await send("POST", `${addressOf(typed.name)}/versions`, { uuid, aliases: words(typed.aliases), notes: typed.notes });
    go(addressOf(typed.name));
  };
  const field = (name: keyof typeof typed, label: string, list?: string) => (
    <input type="text" list={list} value={typed[name]} aria-label={label} placeholder={label} onInput={(event) => type({ ...typed, [name]: event.currentTarget.value })} />
  );
  return (
    <Form title="Add a version to a model" button="Add" disabled={!typed.name || !answer.value} close={close} save={add}>
      <p>
        Checkpoint <code>{uuid}</code> becomes the newest version, and is kept as long as that exists.
      </p>
      {field("name", "model: one that is there, or the name of a new one", "models")}
      <datalist id="models">
        {answer.value?.models.map(({ name }) => <option key={name} value={name} />)}
      </datalist>
      {field("aliases", "aliases, such as production, separated by commas")}
      {field("notes", "notes")}
    </Form>
  );
}
