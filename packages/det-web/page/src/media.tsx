// What a trial logged: images, tables and texts by name, all at one position that a slider chooses.
import { useRef } from "preact/hooks";
import { param, setParams } from "./address";
import { getText, type MediaSeries, queried } from "./api";
import { alike, num, size, type Value } from "./format";
import { ofTrials, useGet, useLive } from "./live";
import { Empty, Loaded } from "./parts";

type File = MediaSeries["files"][number];
interface Table {
  columns: string[];
  rows: Value[][];
}

const SMALL_PIXELS = 160;
const MOST_ROWS = 500;
const MOST_TEXT = 200_000;

export function Media({ id }: { id: number }) {
  const answer = useGet<{ media: MediaSeries[] }>(`/trials/${id}/media`, ofTrials([id]));
  return (
    <Loaded answer={answer}>
      {({ media }) =>
        media.length ? (
          <All id={id} media={media} />
        ) : (
          <Empty>Nothing has been logged: context.log_image, log_table and log_text in the trial keep what is shown here.</Empty>
        )
      }
    </Loaded>
  );
}

function All({ id, media }: { id: number; media: MediaSeries[] }) {
  const all = [...new Set(media.flatMap(({ files }) => files.map(({ batches }) => batches)))].sort((a, b) => a - b);
  // Without a position in the address the newest is shown, also when a newer one comes.
  const wanted = param("at") === "" ? Infinity : Number(param("at"));
  const chosen = Math.max(0, all.findLastIndex((batches) => batches <= wanted));
  const pick = (index: number) => setParams({ at: index >= all.length - 1 ? null : String(all[Math.max(0, index)]) });
  return (
    <>
      <div class="tools position">
        <button onClick={() => pick(chosen - 1)} disabled={chosen === 0} aria-label="previous position">
          ‹
        </button>
        <input
          type="range"
          min="0"
          max={all.length - 1}
          value={chosen}
          aria-label="position"
          aria-valuetext={`batch ${all[chosen]}`}
          onInput={(event) => pick(Number(event.currentTarget.value))}
        />
        <button onClick={() => pick(chosen + 1)} disabled={chosen === all.length - 1} aria-label="next position">
          ›
        </button>
        <span class="counted">
          batch {num(all[chosen])}, {chosen + 1} of {all.length}
        </span>
      </div>
      <div class="media">
        {media.map((series) => (
          <Series key={`${series.kind} ${series.name}`} id={id} series={series} at={all[chosen]!} />
        ))}
      </div>
    </>
  );
}

/** What a name has at a position, or else had last before it. */
function Series({ id, series: { name, kind, files }, at }: { id: number; series: MediaSeries; at: number }) {
  const file = files.findLast(({ batches }) => batches <= at);
  const place = file && `/trials/${id}/media/${file.path.split("/").map(encodeURIComponent).join("/")}${queried({ written: file.written })}`;
  return (
    <figure aria-label={name} class={kind}>
      <figcaption>
        <b>{name}</b>
        {file && (
          <span>
            batch {num(file.batches)} · <a href={`/api/v1${place}`}>{size(file.size)}</a>
          </span>
        )}
      </figcaption>
      {!file || !place ? <Empty>Nothing yet at this position.</Empty> : kind === "image" ? <Image place={place} name={name} file={file} /> : <Read key={kind} place={place} kind={kind} />}
    </figure>
  );
}

function Image({ place, name, file }: { place: string; name: string; file: File }) {
  const scale = ({ currentTarget: image }: { currentTarget: HTMLImageElement }) => image.classList.toggle("small", image.naturalWidth < SMALL_PIXELS);
  return <img src={`/api/v1${place}`} alt={`${name} at batch ${file.batches}`} onLoad={scale} />;
}

function Read({ place, kind }: { place: string; kind: "table" | "text" }) {
  const answer = useLive<string>(place, () => getText(place));
  // What was there stays until the next is, so that a slider that is dragged moves nothing.
  const last = useRef<string | undefined>(undefined);
  last.current = answer.value ?? last.current;
  return <Loaded answer={{ ...answer, value: last.current }}>{(text) => (kind === "table" ? <Rows table={JSON.parse(text) as Table} /> : <Said text={text} />)}</Loaded>;
}

function Said({ text }: { text: string }) {
  return (
    <>
      <pre>{text.slice(0, MOST_TEXT)}</pre>
      {text.length > MOST_TEXT && <p class="dim">The rest is in the file.</p>}
    </>
  );
}

function Rows({ table: { columns, rows } }: { table: Table }) {
  const written = columns.map((_, i) => alike(rows.map((row) => row[i])));
  const numeric = columns.map((_, i) => rows.some((row) => typeof row[i] === "number"));
  return (
    <div class="scrolled">
      <table class="plain">
        <thead>
          <tr>
            {columns.map((name, i) => (
              <th key={i} class={numeric[i] ? "number" : undefined}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, MOST_ROWS).map((row, k) => (
            <tr key={k}>
              {row.map((value, i) => (
                <td key={i} class={numeric[i] ? "number" : undefined}>
                  {typeof value === "number" ? written[i]!(value) : value == null ? "" : String(value)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > MOST_ROWS && (
        <p class="dim">
          The first {num(MOST_ROWS)} of {num(rows.length)} rows; all of them are in the file.
        </p>
      )}
    </div>
  );
}
