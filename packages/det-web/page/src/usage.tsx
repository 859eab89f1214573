// Who has used how many slot-hours: by user, project and state, over a range of days.
import { param, setParams } from "./address";
import { about } from "./api";
import { saveCsv } from "./export";
import { num, NONE, state } from "./format";
import { useGet } from "./live";
import { Empty, Loaded, Section } from "./parts";

interface Row {
  user: string | null;
  workspace: string;
  project: string;
  state: string;
  experiments: number;
  slot_hours: number;
}

const DAYS = 30;
const two = (n: number) => String(n).padStart(2, "0");
const written = (date: Date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
/** The midnight at which a day begins where the reader is, in seconds; NaN for what is no day. */
const begins = (day: string, later = 0) => {
  const [year, month, date] = day.split("-").map(Number) as [number, number, number];
  return new Date(year, month - 1, date + later).getTime() / 1000;
};

export function Usage() {
  const today = new Date();
  const first = param("from", written(new Date(today.getFullYear(), today.getMonth(), today.getDate() - DAYS + 1)));
  const last = param("to", written(today));
  const [since, until] = [begins(first), begins(last, 1)];
  const given = since < until;
  const answer = useGet<{ rows: Row[] }>(given ? `/usage?since=${since}&until=${until}` : null);
  const rows = answer.value?.rows ?? [];
  const save = () =>
    saveCsv(`usage-${first}-${last}`, [
      ["user", "workspace", "project", "state", "experiments", "slot_hours"],
      ...rows.map((row) => [row.user, row.workspace, row.project, row.state, row.experiments, row.slot_hours]),
    ]);
  return (
    <main>
      <h1>Usage</h1>
      <div class="tools">
        <label>
          from <input type="date" value={first} onChange={(event) => setParams({ from: event.currentTarget.value })} />
        </label>
        <label>
          to <input type="date" value={last} onChange={(event) => setParams({ to: event.currentTarget.value })} />
        </label>
        <button disabled={!rows.length} onClick={save}>
          CSV
        </button>
      </div>
      {!given && (
        <p class="error" role="alert">
          The last day is before the first one; choose a later one.
        </p>
      )}
      {given && (
        <Loaded answer={answer}>
          {() =>
            rows.length ? (
              <>
                <p>
                  <strong>{hours(sum(rows))}</strong> slot-hours
                </p>
                <div class="columns">
                  {about.value?.user && <By title="Users" rows={rows} of={(row) => row.user ?? "nobody known here"} />}
                  <By title="Projects" rows={rows} of={(row) => [row.workspace, row.project].filter(Boolean).join("/") || NONE} />
                  <By title="States of trials" rows={rows} of={(row) => state(row.state)} />
                </div>
              </>
            ) : (
              <Empty>No experiment held slots in these days.</Empty>
            )
          }
        </Loaded>
      )}
    </main>
  );
}

const sum = (rows: Row[]) => rows.reduce((total, row) => total + row.slot_hours, 0);
const hours = (value: number) => num(Number(value.toFixed(2)));

function By({ title, rows, of }: { title: string; rows: Row[]; of: (row: Row) => string }) {
  const sums = new Map<string, Row[]>();
  for (const row of rows) sums.set(of(row), [...(sums.get(of(row)) ?? []), row]);
  const all = sum(rows);
  return (
    <Section title={title}>
      <table class="plain">
        <tbody>
          {[...sums].sort((a, b) => sum(b[1]) - sum(a[1])).map(([name, mine]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td class="number">{hours(sum(mine))}</td>
              <td>
                <progress max={1} value={all ? sum(mine) / all : 0} aria-label={`share of ${name}`} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Section>
  );
}
