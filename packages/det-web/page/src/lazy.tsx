// What few pages need is in a file of its own, which comes when it is needed: the pages for a team, and what they share with others.
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

export function Later({ name, ...props }: { name: string; [prop: string]: unknown }) {
  const [parts, set] = useState<Record<string, ComponentType<any>>>();
  const [problem, setProblem] = useState("");
  useEffect(() => {
    import("./team").then(({ parts }) => set(parts), () => setProblem("This part of the page did not come; load the page anew."));
  }, []);
  const Shown = parts?.[name];
  if (Shown) return <Shown {...props} />;
  return problem ? <p class="error">{problem}</p> : <main aria-busy="true" />;
}
