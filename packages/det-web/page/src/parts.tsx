// The small parts that every page is made of: states, messages, boxes, dialogs, tabs.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { A } from "./address";
import { state as stateText } from "./format";
import type { Answer } from "./live";

/** A state as a word with a dot: colour is never all that tells. */
export function State({ name, orphaned }: { name: string; orphaned?: boolean }) {
  if (orphaned) return <span class="state ORPHANED" title="Its driver is gone: `det resume` or Activate goes on with it.">orphaned</span>;
  return <span class={`state ${name}`}>{stateText(name)}</span>;
}

export function Progress({ value }: { value: number | null }) {
  return <progress max={1} value={value ?? 0} aria-label="progress" />;
}

/** Nothing to show, and what to do about it. */
export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

/** What an answer has, or why it has not: errors say what they say, and loading keeps the room it will need. */
export function Loaded<T>({ answer, children }: { answer: Answer<T>; children: (value: T) => ComponentChildren }) {
  return (
    <>
      {answer.error && (
        <p class="error" role="alert">
          {answer.error.message} <button onClick={answer.again}>Try again</button>
        </p>
      )}
      {answer.value !== undefined ? children(answer.value) : !answer.error && <p class="loading" aria-busy="true" />}
    </>
  );
}

export function Tabs({ base, names, chosen }: { base: string; names: string[]; chosen: string }) {
  return (
    <nav class="tabs" aria-label="sections">
      {names.map((name) => (
        <A to={`${base}/${name}`} aria-current={name === chosen ? "page" : undefined} key={name}>
          {name}
        </A>
      ))}
    </nav>
  );
}

/** A part of a page with its heading and, at its right, what one can do with it. */
export function Section({ title, tools, children }: { title: string; tools?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section aria-label={title}>
      <header>
        <h2>{title}</h2>
        <div class="tools">{tools}</div>
      </header>
      {children}
    </section>
  );
}

/** A choice among a few words. */
export function Choice(props: { label: string; value: string; from: (string | [string, string])[]; onPick: (value: string) => void }) {
  return (
    <label class="choice">
      {props.label}{" "}
      <select value={props.value} onChange={(event) => props.onPick(event.currentTarget.value)}>
        {props.from.map((each) => {
          const [value, text] = typeof each === "string" ? [each, each] : each;
          return (
            <option value={value} key={value} selected={value === props.value}>
              {text}
            </option>
          );
        })}
      </select>
    </label>
  );
}

/** A window over the page; Escape closes it, and the focus goes back to where it was: the browser's own dialog does both. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const box = ref.current!;
    const before = document.activeElement as HTMLElement | null;
    box.showModal();
    return () => {
      box.close();
      before?.focus();
    };
  }, []);
  return (
    <dialog ref={ref} aria-label={title} onCancel={(event) => (event.preventDefault(), onClose())}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}

/** A window with a form. It stays until what it saves is answered, and says why that was refused, so that nothing typed is lost. */
export function Form(props: { title: string; button?: string; disabled?: boolean; close: () => void; save: () => Promise<unknown>; children: ComponentChildren }) {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      await props.save();
      props.close();
    } catch (error) {
      setProblem((error as Error).message);
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.close}>
      <form onSubmit={submit}>
        {props.children}
        {problem && (
          <p class="error" role="alert">
            {problem}
          </p>
        )}
        <div class="actions">
          <button disabled={busy || props.disabled}>{props.button ?? "Save"}</button>
          <button type="button" onClick={props.close}>
            Back
          </button>
        </div>
      </form>
    </Dialog>
  );
}

/** How wide an element is, in pixels, as it changes: pictures are made for exactly that width. */
export function useWidth<T extends HTMLElement>() {
  const ref = useRef<T>(null);
  const [width, set] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => set(Math.floor(entry!.contentRect.width)));
    observer.observe(ref.current!);
    return () => observer.disconnect();
  }, []);
  return [ref, width] as const;
}

/** A text that can be copied by a button. */
export function Copied({ text }: { text: string }) {
  const [done, set] = useState(false);
  const copy = () => navigator.clipboard.writeText(text).then(() => set(true), () => set(false));
  return (
    <div class="copied">
      <pre>{text}</pre>
      <button onClick={copy}>{done ? "Copied" : "Copy"}</button>
    </div>
  );
}
