// The webhooks of the home, without their addresses, and the alerts that are not sent yet.
import { useActs } from "./actions";
import { A } from "./address";
import { send } from "./api";
import { count, num, time } from "./format";
import { useEvery, useGet } from "./live";
import { Empty, Loaded, Section } from "./parts";

interface Told {
  webhooks: { name: string; host: string; type: string; on: string[]; mode: string }[];
  unsent: { experiment: number; webhook: string; kind: string; created: number; attempts: number; due: number; dead: boolean; error: string | null }[];
}

const AGAIN_MS = 30_000; // all experiments are read for it

export function Alerts() {
  const answer = useGet<Told>("/alerts");
  useEvery(AGAIN_MS, answer);
  const { run, busy, after } = useActs(answer.again);
  return (
    <main>
      <h1>Alerts</h1>
      {after}
      <Loaded answer={answer}>
        {({ webhooks, unsent }) => (
          <>
            <Section title="Webhooks" tools={count(webhooks.length, "webhook")}>
              {webhooks.length ? (
                <div class="scrolled">
                  <table class="plain">
                    <thead>
                      <tr>
                        <th>name</th>
                        <th>host</th>
                        <th>type</th>
                        <th>alerts</th>
                        <th>of experiments</th>
                      </tr>
                    </thead>
                    <tbody>
                      {webhooks.map((each) => (
                        <tr key={each.name}>
                          <td>{each.name}</td>
                          <td>{each.host}</td>
                          <td>{each.type}</td>
                          <td>{each.on.join(", ")}</td>
                          <td>{each.mode === "all" ? "all" : "that name it"}</td>
                        </tr>
                      ))}
                    </tbody>
                  </table>
                </div>
              ) : (
                <Empty>
                  There is no webhook. They are in <code>alerts.yaml</code> of the home.
                </Empty>
              )}
            </Section>
            <Section title="Not sent yet" tools={count(unsent.length, "alert")}>
              {unsent.length ? (
                <div class="scrolled">
                  <table class="plain">
                    <thead>
                      <tr>
                        <th>experiment</th>
                        <th aria-label="actions" />
                        <th>alert</th>
                        <th>webhook</th>
                        <th>made</th>
                        <th class="number">attempts</th>
                        <th>state</th>
                        <th>error</th>
                      </tr>
                    </thead>
                    <tbody>
                      {unsent.map((each, i) => (
                        <tr key={i}>
                          <td>
                            <A to={`/e/${each.experiment}/trials`}>{each.experiment}</A>
                          </td>
                          <td>
                            {each.experiment !== unsent[i - 1]?.experiment && (
                              <button
                                disabled={busy}
                                aria-label={`send the alerts of experiment ${each.experiment} again`}
                                onClick={() => run(() => send("POST", "/alerts", { experiment: each.experiment }))}
                              >
                                Send again
                              </button>
                            )}
                          </td>
                          <td>{each.kind}</td>
                          <td>{each.webhook}</td>
                          <td class="whole">{time(each.created)}</td>
                          <td class="number">{num(each.attempts)}</td>
                          <td>{each.dead ? "dead" : "waits"}</td>
                          <td class="why">{each.error}</td>
                        </tr>
                      ))}
                    </tbody>
                  </table>
                </div>
              ) : (
                <Empty>All alerts are sent.</Empty>
              )}
            </Section>
          </>
        )}
      </Loaded>
    </main>
  );
}
