// The queue for slots: what waits, for how long, who holds slots, and how many each held as time went on.
import { useEffect, useState } from "preact/hooks";
import { A, param, setParams } from "./address";
import { about, get, mayChange, send } from "./api";
import { count, duration, NONE, num, time } from "./format";
import { useEvery, useGet } from "./live";
import { Choice, Empty, Form, Loaded, Section, useWidth } from "./parts";

interface Row {
  experiment: number;
  name: string | null;
  user: string | null;
  task: string;
  runs: number;
  slots: number;
  priority: number;
  rank: number;
  weight: number | null;
  seconds: number;
  devices: string[];
  needed_by: number | null;
}

interface Share {
  priority: number | null;
  weight: number | null;
  max_slots: number | null;
}

interface Slots {
  since: number;
  step: number;
  experiments: { experiment: number; name: string; user: string | null; slots: number[] }[];
}

const AGAIN_MS = 5000; // a run that begins to wait changes no experiment, so nothing tells of it
const HELD_MS = 30_000; // the runs of all experiments are read for it

export function Queue() {
  const answer = useGet<{ waiting: Row[]; running: Row[] }>("/queue", () => true);
  const [changed, change] = useState<Row | null>(null);
  useEvery(AGAIN_MS, answer);
  return (
    <main>
      <h1>Queue</h1>
      <Loaded answer={answer}>
        {({ waiting, running }) => (
          <>
            <Section title="Waiting" tools={count(waiting.reduce((sum, { runs }) => sum + runs, 0), "run")}>
              {waiting.length ? <Rows rows={waiting} change={change} waits /> : <Empty>Nothing waits for slots of this machine.</Empty>}
            </Section>
            <Section title="Running" tools={count(running.reduce((sum, { slots }) => sum + slots, 0), "slot")}>
              {running.length ? <Rows rows={running} change={change} /> : <Empty>Nothing holds slots of this machine.</Empty>}
            </Section>
          </>
        )}
      </Loaded>
      <Held />
      {changed && <Change row={changed} close={() => change(null)} again={answer.again} />}
    </main>
  );
}

function Rows({ rows, change, waits = false }: { rows: Row[]; change: (row: Row) => void; waits?: boolean }) {
  const users = rows.some(({ user }) => user);
  return (
    <div class="scrolled">
      <table class="plain spread">
        <thead>
          <tr>
            <th>experiment</th>
            <th aria-label="change" />
            {users && <th>user</th>}
            <th class="number">priority</th>
            {waits && <th class="number">weight</th>}
            {waits && <th class="number">runs</th>}
            <th class="number">{waits ? "slots each" : "slots"}</th>
            <th class="number">for</th>
            {!waits && <th>devices</th>}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i}>
              <td>
                <A to={`/e/${row.experiment}/trials`}>
                  {row.experiment} {row.name}
                </A>
                {!waits && row.task === "notebook" && row.user && row.user === about.value?.user && (
                  <>
                    {" "}
                    <a href={`/notebooks/${row.experiment}/`} target="_blank" rel="noopener">
                      open
                    </a>
                  </>
                )}
              </td>
              <td>{mayChange() && <button aria-label={`change experiment ${row.experiment}`} onClick={() => change(row)}>Change</button>}</td>
              {users && <td>{row.user ?? NONE}</td>}
              <td class="number" title={row.rank === row.priority ? undefined : "what has waited goes before later ones: the priority that counts now"}>
                {row.priority}
                {row.rank !== row.priority && ` (now ${num(row.rank)})`}
              </td>
              {waits && <td class="number">{num(row.weight)}</td>}
              {waits && <td class="number">{num(row.runs)}</td>}
              <td class="number">{num(row.slots)}</td>
              <td class="number">{duration(row.seconds)}</td>
              {!waits && (
                <td>
                  {row.devices.join(" ")}
                  {row.needed_by != null && (
                    <>
                      , to be given to <A to={`/e/${row.needed_by}/trials`}>experiment {row.needed_by}</A>
                    </>
                  )}
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const FIELDS: [keyof Share, string, string][] = [
  ["priority", "priority", "1 to 99, 1 before 99; runs of others with a greater number are preempted"],
  ["weight", "weight", "its share among experiments of the same priority"],
  ["max_slots", "max slots", "the most slots that its trials hold at once; empty where nothing limits them"],
];

function Change({ row, close, again }: { row: Row; close: () => void; again: () => void }) {
  const address = `/experiments/${row.experiment}/queue`;
  const [before, setBefore] = useState<Share>();
  const [typed, type] = useState<Record<string, string>>({});
  const [problem, setProblem] = useState("");
  useEffect(() => void get<Share>(address).then(setBefore, (error: Error) => setProblem(error.message)), []);
  const save = async () => {
    await send("PATCH", address, Object.fromEntries(Object.entries(typed).map(([name, text]) => [name, text ? Number(text) : null])));
    again();
  };
  return (
    <Form title={`Experiment ${row.experiment} in the queue`} disabled={!before} close={close} save={save}>
      {FIELDS.map(([name, title, says]) => (
        <p key={name}>
          <label>
            {title}{" "}
            <input
              class="short"
              type="number"
              step={name === "weight" ? "any" : 1}
              min={name === "weight" ? 0 : 1}
              max={name === "priority" ? 99 : undefined}
              aria-label={title}
              disabled={!before}
              required={name !== "max_slots" && before?.[name] != null}
              value={typed[name] ?? before?.[name] ?? ""}
              onInput={(event) => type({ ...typed, [name]: event.currentTarget.value })}
            />
          </label>{" "}
          <span class="dim">{says}</span>
        </p>
      ))}
      {problem && (
        <p class="error" role="alert">
          {problem}
        </p>
      )}
    </Form>
  );
}

const HOURS: [string, string][] = [
  ["1", "hour"],
  ["6", "6 hours"],
  ["24", "day"],
  ["168", "week"],
  ["720", "30 days"],
];
const [HIGH, AXIS, MOST] = [180, 44, 8];

/** How many slots each experiment or user held: areas upon each other, the greatest lowest. */
function Held() {
  const [box, width] = useWidth<HTMLDivElement>();
  const hours = param("hours", "24");
  const by = param("by", "experiment");
  const answer = useGet<Slots>(`/slots?hours=${encodeURIComponent(hours)}`);
  useEvery(HELD_MS, answer);
  const tools = (
    <>
      {about.value?.user && (
        <Choice label="by" value={by} from={["experiment", "user"]} onPick={(value) => setParams({ by: value === "experiment" ? null : value })} />
      )}
      <Choice label="the last" value={hours} from={HOURS} onPick={(value) => setParams({ hours: value === "24" ? null : value })} />
    </>
  );
  return (
    <Section title="Slots over time" tools={tools}>
      <div ref={box}>
        <Loaded answer={answer}>{(told) => <Areas told={told} by={by} width={width} />}</Loaded>
      </div>
    </Section>
  );
}

function Areas({ told, by, width }: { told: Slots; by: string; width: number }) {
  const sums = new Map<string, number[]>();
  for (const { experiment, name, user, slots } of told.experiments) {
    const key = by === "user" ? (user ?? "nobody known here") : `${experiment} ${name}`;
    const sum = sums.get(key);
    sums.set(key, sum ? sum.map((value, i) => value + slots[i]!) : slots);
  }
  const total = (values: number[]) => values.reduce((sum, value) => sum + value, 0);
  const order = [...sums].sort((a, b) => total(b[1]) - total(a[1]));
  if (!order.length) return <Empty>No experiment held slots in this time.</Empty>;
  const shown = order.slice(0, MOST);
  const others = order.slice(MOST);
  if (others.length) shown.push([`${num(others.length)} others`, others[0]![1].map((_, i) => others.reduce((sum, [, values]) => sum + values[i]!, 0))]);
  const n = shown[0]![1].length;
  const most = Math.max(1, ...Array.from({ length: n }, (_, i) => shown.reduce((sum, [, values]) => sum + values[i]!, 0)));
  const x = (i: number) => AXIS + (i / n) * Math.max(0, width - AXIS - 2);
  const y = (value: number) => 8 + (1 - value / most) * (HIGH - 8);
  const base = new Array<number>(n).fill(0);
  const paths = shown.map(([name, values]) => {
    const low = [...base];
    values.forEach((value, i) => (base[i]! += value));
    const up = base.map((value, i) => `${i ? "V" : `M${x(0)} `}${y(value)}H${x(i + 1)}`).join("");
    const down = low.map((value, i) => [value, i] as const).reverse().map(([value, i]) => `V${y(value)}H${x(i)}`).join("");
    return { name, path: `${up}${down}Z`, hours: (total(values) * told.step) / 3600 };
  });
  const at = (share: number) => told.since + share * told.step * n;
  return (
    <>
      <svg class="areas" width={width} height={HIGH + 24} role="img" aria-label={`slots held by ${paths.map(({ name, hours }) => `${name}: ${num(Number(hours.toFixed(2)))} slot-hours`).join(", ")}`}>
        <line x1={AXIS} x2={width - 2} y1={HIGH + 0.5} y2={HIGH + 0.5} />
        {paths.map(({ name, path }, i) => (
          <path key={name} d={path} class={`area-${i}`}>
            <title>{name}</title>
          </path>
        ))}
        <text class="tick" x={0} y={y(most) + 8}>
          {num(Number(most.toFixed(1)))}
        </text>
        <text class="tick" x={0} y={HIGH}>
          0 slots
        </text>
        {[0, 0.5, 1].map((share) => (
          <text key={share} class="tick" x={AXIS + share * (width - AXIS - 2)} y={HIGH + 18} text-anchor={share === 0 ? "start" : share === 1 ? "end" : "middle"}>
            {time(at(share)).slice(n * told.step > 86400 ? 5 : 11)}
          </text>
        ))}
      </svg>
      <ul class="legend wrapped">
        {paths.map(({ name, hours }, i) => (
          <li key={name} title={name}>
            <i class={`area-${i}`} />
            {name}: {num(Number(hours.toFixed(2)))} slot-hours
          </li>
        ))}
      </ul>
    </>
  );
}
