// The machines with their slots: who holds them, and who waits for what.
import { A } from "./address";
import type { Cluster as Told } from "./api";
import { count } from "./format";
import { useGet } from "./live";
import { Empty, Loaded, Section } from "./parts";

export function Cluster() {
  const answer = useGet<Told>("/cluster", () => true);
  return (
    <main>
      <h1>Cluster</h1>
      <Loaded answer={answer}>
        {({ machines, waiting }) => (
          <>
            {!machines.length && <Empty>No machine is known: an experiment that runs brings those that it runs on.</Empty>}
            {machines.map(({ name, slots }) => (
              <Section key={name} title={name} tools={`${slots.filter((slot) => slot.experiment != null).length} of ${count(slots.length, "slot")} held`}>
                <ul class="slots">
                  {slots.map(({ id, kind, experiment, trial }) => (
                    <li key={id} class={experiment != null ? "held" : undefined}>
                      <b>
                        {kind} {id}
                      </b>{" "}
                      {experiment == null ? (
                        "free"
                      ) : (
                        <>
                          {trial != null && <A to={`/t/${trial}/metrics`}>trial {trial}</A>}
                          {trial != null && " of "}
                          <A to={`/e/${experiment}/trials`}>experiment {experiment}</A>
                        </>
                      )}
                    </li>
                  ))}
                </ul>
              </Section>
            ))}
            <Section title="Waiting">
              {waiting.length ? (
                <ul>
                  {waiting.map((each, i) => (
                    <li key={i}>
                      <A to={`/e/${each.experiment}/trials`}>Experiment {each.experiment}</A> waits for {each.for}
                      {each.held_by != null && each.held_by.length > 0 && <Holders held={each.held_by} />}
                    </li>
                  ))}
                </ul>
              ) : (
                <Empty>Nobody waits.</Empty>
              )}
            </Section>
          </>
        )}
      </Loaded>
    </main>
  );
}

function Holders({ held }: { held: number[] | string }) {
  if (typeof held === "string") return <>, held by {held}</>;
  return (
    <>
      , held by{" "}
      {held.map((id, i) => (
        <>
          {i > 0 && ", "}
          <A key={id} to={`/e/${id}/trials`}>
            experiment {id}
          </A>
        </>
      ))}
    </>
  );
}
