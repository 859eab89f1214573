// The code that an experiment runs, as text, and what differs from another experiment's.
import { useMemo } from "preact/hooks";
import { param, setParams } from "./address";
import { getText } from "./api";
import { size } from "./format";
import { useGet, useLive } from "./live";
import { Empty, Loaded } from "./parts";

interface File {
  path: string;
  size: number;
}

const escaped = (path: string) => path.split("/").map(encodeURIComponent).join("/");

export function Code({ id }: { id: number }) {
  const other = Number(param("with")) || null;
  const here = useGet<File[]>(`/experiments/${id}/code`);
  const there = useGet<File[]>(other ? `/experiments/${other}/code` : null);
  return (
    <Loaded answer={here}>
      {(files) => {
        const all = [...new Map([...files, ...(there.value ?? [])].map((file) => [file.path, file])).values()].sort((a, b) => (a.path < b.path ? -1 : 1));
        if (!all.length) return <Empty>This experiment has no code of its own: it was started without a folder of code.</Empty>;
        const file = all.find(({ path }) => path === param("file")) ?? all.find(({ path }) => path.endsWith(".py")) ?? all[0]!;
        return (
          <>
            <div class="tools">
              <label class="choice">
                differences from experiment{" "}
                <input type="search" class="short" inputMode="numeric" value={param("with")} aria-label="another experiment" onChange={(e) => setParams({ with: e.currentTarget.value })} />
              </label>
              {there.error && <span class="error">{there.error.message}</span>}
            </div>
            <div class="files">
              <ul aria-label="files">
                {all.map(({ path, size: bytes }) => (
                  <li key={path}>
                    <button aria-pressed={path === file.path} onClick={() => setParams({ file: path })}>
                      {path}
                    </button>
                    <span class="dim">{size(bytes)}</span>
                  </li>
                ))}
              </ul>
              <Text id={id} other={there.value ? other : null} path={file.path} />
            </div>
          </>
        );
      }}
    </Loaded>
  );
}

/** A file that one of the two has not is empty there. */
const read = (id: number, path: string) => getText(`/experiments/${id}/code/${escaped(path)}`).catch((error) => (error.status === 404 ? "" : Promise.reject(error)));

function Text({ id, other, path }: { id: number; other: number | null; path: string }) {
  const answer = useLive<[string, string | null]>(`${id} ${other} ${path}`, async () => [await read(id, path), other ? await read(other, path) : null]);
  return <Loaded answer={answer}>{([mine, theirs]) => (theirs === null ? <Plain text={mine} path={path} /> : <Differences before={theirs} after={mine} />)}</Loaded>;
}

function Plain({ text, path }: { text: string; path: string }) {
  return (
    <div class="code" tabIndex={0} role="group" aria-label={path}>
      <pre class="numbered">
        {coloured(text, path).map((line, i) => (
          <span key={i} class="line">
            {line.map(([kind, part], k) => (kind ? <span key={k} class={kind}>{part}</span> : part))}
            {"\n"}
          </span>
        ))}
      </pre>
    </div>
  );
}

const PYTHON =
  "and|as|assert|async|await|break|class|continue|def|del|elif|else|except|False|finally|for|from|global|if|import|in|is|lambda|match|None|nonlocal|not|or|pass|raise|return|True|try|while|with|yield";
const STRING = `(?:\\b[rRbBfFuU]{1,2})?(?:\"\"\"[^]*?(?:\"\"\"|$)|'''[^]*?(?:'''|$)|\"(?:\\\\.|[^\"\\\\\\n])*\"|'(?:\\\\.|[^'\\\\\\n])*')`;
const NUMBER = "\\b\\d[\\d_]*(?:\\.\\d+)?(?:[eE][-+]?\\d+)?\\b";
const RULES: Record<string, RegExp> = {
  py: new RegExp(`(?<comment>#.*)|(?<string>${STRING})|(?<keyword>\\b(?:${PYTHON})\\b|@[\\w.]+)|(?<value>${NUMBER})`, "g"),
  yaml: new RegExp(`(?<comment>(?:^|(?<=\\s))#.*)|(?<keyword>^[ \\t-]*[\\w.]+(?=:))|(?<string>${STRING})|(?<value>${NUMBER}|\\b(?:true|false|null)\\b)`, "gm"),
  json: new RegExp(`(?<string>${STRING})|(?<value>${NUMBER}|\\b(?:true|false|null)\\b)`, "g"),
  sh: new RegExp(`(?<comment>(?:^|(?<=\\s))#.*)|(?<string>${STRING})|(?<keyword>\\b(?:if|then|else|fi|for|do|done|while|case|esac|export|set)\\b)`, "gm"),
};
RULES.yml = RULES.yaml!;
const MOST_COLOURED = 200_000; // characters: colouring more takes longer than it helps

/** The lines of a file in parts, each with its kind: comment, string, keyword, value or none. Text, whatever is in it. */
export function coloured(text: string, path: string): [string, string][][] {
  const rule = text.length <= MOST_COLOURED ? RULES[path.split(".").at(-1)!] : undefined;
  const lines: [string, string][][] = [[]];
  const put = (kind: string, part: string) =>
    part.split("\n").forEach((each, i) => {
      if (i) lines.push([]);
      if (each) lines.at(-1)!.push([kind, each]);
    });
  let end = 0;
  for (const match of rule ? text.matchAll(rule) : []) {
    if (!match[0]) continue;
    put("", text.slice(end, match.index));
    put(Object.entries(match.groups!).find(([, found]) => found !== undefined)![0], match[0]);
    end = match.index + match[0].length;
  }
  put("", text.slice(end));
  if (text.endsWith("\n")) lines.pop();
  return lines;
}

function Differences({ before, after }: { before: string; after: string }) {
  const lines = useMemo(() => difference(before.split("\n"), after.split("\n")), [before, after]);
  if (lines.every(([sign]) => sign === " ")) return <Empty>This file is the same in both.</Empty>;
  return (
    <div class="code" tabIndex={0} role="group" aria-label="differences">
      <pre>
        {lines.map(([sign, line], i) => (
          <span key={i} class={sign === "+" ? "added" : sign === "-" ? "gone" : undefined}>
            {sign} {line}
          </span>
        ))}
      </pre>
    </div>
  );
}

/** Lines that were added or are gone, by the longest common subsequence; what is equal at both ends is not looked at. */
export function difference(a: string[], b: string[]): [" " | "+" | "-", string][] {
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const [x, y] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  const same = (lines: string[]) => lines.map((line): [" ", string] => [" ", line]);
  const middle: [" " | "+" | "-", string][] = [];
  if (x.length * y.length > 4e6) middle.push(...x.map((l): ["-", string] => ["-", l]), ...y.map((l): ["+", string] => ["+", l]));
  else {
    const width = y.length + 1;
    const length = new Uint16Array((x.length + 1) * width);
    for (let i = x.length - 1; i >= 0; i--)
      for (let j = y.length - 1; j >= 0; j--)
        length[i * width + j] = x[i] === y[j] ? length[(i + 1) * width + j + 1]! + 1 : Math.max(length[(i + 1) * width + j]!, length[i * width + j + 1]!);
    for (let i = 0, j = 0; i < x.length || j < y.length; )
      if (i < x.length && j < y.length && x[i] === y[j]) middle.push([" ", x[i++]!]), j++;
      else if (j < y.length && (i === x.length || length[i * width + j + 1]! > length[(i + 1) * width + j]!)) middle.push(["+", y[j++]!]);
      else middle.push(["-", x[i++]!]);
  }
  return [...same(a.slice(0, start)), ...middle, ...same(a.slice(a.length - end))];
}
