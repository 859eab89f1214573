// A log of any length: it opens at its end and follows it; what is above comes as one scrolls there. Text nodes only.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { param, setParams } from "./address";
import { get, lines as streamed, queried } from "./api";
import { num, settled, size } from "./format";
import { useLive, type Change } from "./live";
import { Empty } from "./parts";

interface Piece {
  text: string;
  offset: number;
  end: number;
  size: number;
}

interface Hit {
  offset: number;
  line: string;
}

interface Props {
  address: string;
  query?: Record<string, number>;
  name: string;
  live: (change: Change) => boolean;
  /** Whether somebody still writes to it: what is printed is no change of the store's, and is looked for. */
  growing: boolean;
  tools?: ComponentChildren;
}

const CHUNK = 64 * 1024;
const LOOK_MS = 1000;
const HELD = 1024 * 1024; // characters in the document at most: more makes a browser slow, and can be scrolled to

export function Log({ address, query = {}, name, live, growing, tools }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [held, setHeld] = useState<Piece | null>(null);
  const [follow, setFollow] = useState(!param("at"));
  const keep = useRef<number | null>(null); // the distance from the end that the view keeps while text is put above it
  const busy = useRef(false);
  const piece = (offset: number) => get<Piece>(`${address}${queried({ ...query, offset, limit: CHUNK })}`);

  const open = async (at: number) => {
    const found = await piece(at);
    setHeld(found);
  };
  const tail = useLive<number>(
    `${address} ${JSON.stringify(query)}`,
    async (count) => {
      if (count === undefined) await open(param("at") ? Number(param("at")) : -CHUNK);
      else if (follow) await grow();
      return (count ?? 0) + 1;
    },
    live,
  );
  const state = useRef({ held, follow });
  state.current = { held, follow };

  /** Puts what was written since at the end; only where the end is in sight, else the view would move under the reader. */
  const grow = async () => {
    let now: Piece | null = state.current.held;
    if (!now || !state.current.follow) return;
    for (let more = await piece(now.end); more.text; more = await piece(now.end)) {
      const text: string = now.text + more.text;
      const cut = Math.max(0, text.length - HELD);
      const start: number = cut ? now.offset + bytes(text.slice(0, cut)) : now.offset;
      now = { text: text.slice(cut), offset: start, end: more.end, size: more.size };
      setHeld(now);
      if (more.end >= more.size) return;
    }
  };
  useEffect(() => {
    if (!follow) return;
    void grow().catch(() => {});
    const timer = growing && setInterval(() => document.hidden || void grow().catch(() => {}), LOOK_MS);
    return () => clearInterval(timer || undefined);
  }, [follow, growing]);

  const above = async () => {
    if (!held || !held.offset || busy.current) return;
    busy.current = true;
    try {
      const from = Math.max(0, held.offset - CHUNK);
      const more = await get<Piece>(`${address}${queried({ ...query, offset: from, limit: held.offset - from })}`);
      keep.current = box.current!.scrollHeight - box.current!.scrollTop;
      setHeld({ ...held, text: more.text + held.text, offset: more.offset });
    } finally {
      busy.current = false;
    }
  };
  const below = async () => {
    if (!held || held.end >= held.size || busy.current) return;
    busy.current = true;
    try {
      const more = await piece(held.end);
      setHeld({ ...held, text: held.text + more.text, end: more.end, size: more.size });
    } finally {
      busy.current = false;
    }
  };
  useLayoutEffect(() => {
    const view = box.current;
    if (!view) return;
    if (keep.current !== null) view.scrollTop = view.scrollHeight - keep.current;
    else if (follow) view.scrollTop = view.scrollHeight;
    keep.current = null;
  }, [held, follow]);
  const onScroll = () => {
    const view = box.current!;
    const end = view.scrollHeight - view.scrollTop - view.clientHeight < 8;
    if (follow && !end) setFollow(false);
    else if (!follow && end && held && held.end >= held.size) setFollow(true);
    if (view.scrollTop < 200) void above();
    if (end) void below();
  };
  const jump = (offset: number) => {
    setFollow(false);
    setParams({ at: String(offset) });
    void open(offset).then(() => box.current!.scrollTo(0, 0));
  };
  const toEnd = () => {
    setParams({ at: null });
    void open(-CHUNK).then(() => setFollow(true));
  };
  return (
    <section aria-label={name}>
      <div class="tools">
        {tools}
        <Finder key={JSON.stringify(query)} address={`${address}/search`} query={query} found={held?.size ?? 0} onPick={jump} />
        <span class="counted">{held && `${size(held.size)}, from ${num(held.offset)}`}</span>
        <button onClick={() => jump(0)}>Start</button>
        <button onClick={toEnd} aria-pressed={follow}>
          {follow ? "Following" : "End"}
        </button>
      </div>
      {tail.error && (
        <p class="error" role="alert">
          {tail.error.message}
        </p>
      )}
      {held && !held.size && <Empty>{growing ? "Nothing has been printed yet." : "Nothing was printed."}</Empty>}
      <div class="log" ref={box} onScroll={onScroll} tabIndex={0} role="log" aria-label={name}>
        <pre>{held && settled(held.text)}</pre>
      </div>
    </section>
  );
}

const bytes = (text: string) => new TextEncoder().encode(text).length;

interface Finding {
  address: string;
  query: Record<string, number>;
  /** The log's size: when it grows, the search goes on from where it was. */
  found: number;
  onPick: (offset: number) => void;
}

/** Searches the whole log on the server, shows the lines as they are found, and goes on as the log grows. */
function Finder({ address, query, found: grown, onPick }: Finding) {
  const [text, setText] = useState(param("find"));
  const [hits, setHits] = useState<Hit[]>([]);
  const [running, setRunning] = useState(false);
  const done = useRef({ text: "", upTo: 0 });
  useEffect(() => {
    if (text !== param("find")) setParams({ find: text });
    if (text !== done.current.text) {
      done.current = { text, upTo: 0 };
      setHits([]);
    }
    if (!text) return;
    const stop = new AbortController();
    const search = async () => {
      setRunning(true);
      let waiting: Hit[] = [];
      const flush = () => {
        const some = waiting;
        waiting = [];
        if (some.length) setHits((before) => [...before, ...some].slice(-5000));
      };
      try {
        for await (const hit of streamed<Hit>(`${address}${queried({ ...query, text, from: done.current.upTo })}`, stop.signal)) {
          done.current.upTo = hit.offset + bytes(hit.line) + 1;
          if (waiting.push(hit) >= 100) flush();
        }
      } catch (problem) {
        if ((problem as Error).name !== "AbortError") throw problem;
      } finally {
        flush();
        if (!stop.signal.aborted) setRunning(false);
      }
    };
    const timer = setTimeout(() => void search(), 250);
    return () => (clearTimeout(timer), stop.abort());
  }, [text, grown]);
  return (
    <div class="finder">
      <input type="search" value={text} placeholder="search the whole log" aria-label="search the log" onInput={(e) => setText(e.currentTarget.value)} />
      {text && (
        <span class="counted" role="status">
          {num(hits.length)} lines{running ? " …" : ""}
        </span>
      )}
      {text && hits.length > 0 && (
        <ol class="hits">
          {hits.slice(-200).map((hit) => (
            <li key={hit.offset}>
              <button onClick={() => onPick(hit.offset)}>{hit.line || " "}</button>
            </li>
          ))}
        </ol>
      )}
    </div>
  );
}
