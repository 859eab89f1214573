// The users of a server, for admins, and the sessions and API tokens: one's own, and for admins all.
import { useState } from "preact/hooks";
import { useActs } from "./actions";
import { about, send } from "./api";
import { count, time } from "./format";
import { useGet } from "./live";
import { Choice, Empty, Form, Loaded, Section } from "./parts";

interface Account {
  name: string;
  role: string;
  disabled: boolean;
  created: number;
  /** Bytes, as the quota, which is null without a limit. */
  used: number;
  quota: number | null;
}

interface Token {
  id: number;
  user: string;
  is_session: boolean;
  created: number;
  expires: number;
}

const ROLES = { viewer: "sees everything", editor: "starts experiments, and changes their own", admin: "changes everything" };

export function Users() {
  const told = about.value;
  if (!told) return <main aria-busy="true" />;
  if (!told.user)
    return (
      <main>
        <Empty>
          This page is of one user. <code>det server start</code> serves a home to several.
        </Empty>
      </main>
    );
  return (
    <main>
      <h1>Users</h1>
      {told.role === "admin" && <Accounts />}
      <Tokens all={told.role === "admin"} />
    </main>
  );
}

function Accounts() {
  const answer = useGet<{ users: Account[] }>("/users");
  const { run, ask, busy, after } = useActs(answer.again);
  const [window, open] = useState<{ name?: string; role: string } | null>(null);
  const [limit, limitTo] = useState<{ name: string; quota: string } | null>(null);
  const change = (name: string, what: object) => () => send("PATCH", `/users/${encodeURIComponent(name)}`, what);
  return (
    <Section title="Accounts" tools={
        <>
          {answer.value && count(answer.value.users.length, "user")} <button onClick={() => open({ role: "editor" })}>Add a user</button>
        </>
      }
    >
      {after}
      <Loaded answer={answer}>
        {({ users }) => (
          <div class="scrolled">
            <table class="plain">
              <thead>
                <tr>
                  <th>name</th>
                  <th>role</th>
                  <th aria-label="actions" />
                  <th class="number">uses</th>
                  <th class="number">of</th>
                  <th>since</th>
                </tr>
              </thead>
              <tbody>
                {users.map(({ name, role, disabled, created, used, quota }) => (
                  <tr key={name} class={disabled ? "dim" : undefined}>
                    <td>{name}</td>
                    <td>
                      {role}{" "}
                      <button aria-label={`change the role of ${name}`} onClick={() => open({ name, role })}>
                        Change
                      </button>
                    </td>
                    <td>
                      {disabled ? (
                        <button disabled={busy} aria-label={`enable ${name}`} onClick={() => run(change(name, { disabled: false }))}>
                          Enable
                        </button>
                      ) : (
                        <button
                          class="danger"
                          aria-label={`disable ${name}`}
                          onClick={() =>
                            ask({
                              title: `Disable ${name}?`,
                              text: "The sessions end, and nobody signs in as this user or uses its tokens until it is enabled again. Its experiments stay, and go on.",
                              button: "Disable",
                              act: change(name, { disabled: true }),
                            })
                          }
                        >
                          Disable
                        </button>
                      )}
                    </td>
                    <td class="number">{gibibytes(used)}</td>
                    <td class="number">
                      {quota == null ? "no quota" : gibibytes(quota)}{" "}
                      <button aria-label={`change the quota of ${name}`} onClick={() => limitTo({ name, quota: quota == null ? "" : String(quota) })}>
                        Change
                      </button>
                    </td>
                    <td class="whole">{time(created)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Loaded>
      {limit && (
        <Form
          title={`The quota of ${limit.name}`}
          disabled={bytes(limit.quota) === undefined}
          close={() => limitTo(null)}
          save={() => change(limit.name, { quota: bytes(limit.quota) })().then(answer.again)}
        >
          <p>What its experiments and their checkpoints may use: bytes, or a size such as 50GiB. Empty is no limit.</p>
          <input
            type="text"
            aria-label="quota"
            value={limit.quota}
            onInput={(event) => limitTo({ ...limit, quota: event.currentTarget.value })}
          />
        </Form>
      )}
      {window?.name != null && (
        <Form title={`The role of ${window.name}`} close={() => open(null)} save={() => change(window.name!, { role: window.role })().then(answer.again)}>
          <Roles role={window.role} pick={(role) => open({ ...window, role })} />
        </Form>
      )}
      {window && window.name == null && <Add close={() => open(null)} again={answer.again} />}
    </Section>
  );
}

/** Bytes in the unit in which quotas are given. */
function gibibytes(bytes: number): string {
  return `${Number((bytes / 2 ** 30).toPrecision(3))} GiB`;
}

/** The bytes of a size such as 50GiB, null if it is empty, and undefined if it is none. */
function bytes(text: string): number | null | undefined {
  if (!text.trim()) return null;
  const found = /^(\d+(?:\.\d+)?) ?([KMGTP]iB|)$/.exec(text.trim());
  return found ? Math.trunc(Number(found[1]) * 1024 ** " KMGTP".indexOf(found[2]![0] ?? " ")) : undefined;
}

/** A choice of a role. Arrow keys change it at once, so a button of the window saves it. */
function Roles({ role, pick }: { role: string; pick: (role: string) => void }) {
  return (
    <p>
      <Choice label="role" value={role} from={Object.entries(ROLES).map(([name, says]) => [name, `${name}: ${says}`])} onPick={pick} />
    </p>
  );
}

function Add({ close, again }: { close: () => void; again: () => void }) {
  const [typed, type] = useState({ name: "", password: "", role: "editor" });
  const field = (name: "name" | "password", label: string) => ({
    value: typed[name],
    "aria-label": label,
    placeholder: label,
    autocomplete: "new-password" as const,
    onInput: (event: { currentTarget: { value: string } }) => type({ ...typed, [name]: event.currentTarget.value }),
  });
  return (
    <Form title="New user" button="Add" disabled={!typed.name || !typed.password} close={close} save={() => send("POST", "/users", typed).then(again)}>
      <input type="text" {...field("name", "name")} />
      <input type="password" {...field("password", "password, of 10 characters or more")} />
      <Roles role={typed.role} pick={(role) => type({ ...typed, role })} />
    </Form>
  );
}

function Tokens({ all }: { all: boolean }) {
  const answer = useGet<{ tokens: Token[] }>("/tokens");
  const { run, busy, after } = useActs(answer.again);
  return (
    <Section title={all ? "Sessions and tokens of all users" : "Your sessions and tokens"}>
      {after}
      <Loaded answer={answer}>
        {({ tokens }) => (
          <div class="scrolled">
            <table class="plain">
              <thead>
                <tr>
                  <th class="number">number</th>
                  {all && <th>user</th>}
                  <th>kind</th>
                  <th aria-label="actions" />
                  <th>since</th>
                  <th>expires</th>
                </tr>
              </thead>
              <tbody>
                {tokens.map(({ id, user, is_session, created, expires }) => (
                  <tr key={id}>
                    <td class="number">{id}</td>
                    {all && <td>{user}</td>}
                    <td>{is_session ? "session" : "token"}</td>
                    <td>
                      <button disabled={busy} aria-label={`revoke ${id}`} onClick={() => run(() => send("DELETE", `/tokens/${id}`))}>
                        Revoke
                      </button>
                    </td>
                    <td class="whole">{time(created)}</td>
                    <td class="whole">{time(expires)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Loaded>
    </Section>
  );
}
