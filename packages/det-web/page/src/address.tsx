// The address is the view: what is shown, filtered, sorted and zoomed to is read from the URL and written to it.
import { computed, signal } from "@preact/signals";
import type { ComponentChildren } from "preact";

const here = signal(location.pathname + location.search);
addEventListener("popstate", () => (here.value = location.pathname + location.search));

export const path = computed(() => here.value.split("?", 1)[0]!);
const query = computed(() => new URLSearchParams(here.value.slice(path.value.length)));

/** Goes to a page of this site; `replace` where going back should not return to what was here. */
export function go(to: string, replace = false): void {
  history[replace ? "replaceState" : "pushState"](null, "", to);
  here.value = to;
  if (!replace) scrollTo(0, 0);
}

/** A parameter of the query string, or `otherwise`. */
export function param(name: string, otherwise = ""): string {
  return query.value.get(name) ?? otherwise;
}

/** Sets parameters of the query string; an empty text removes one. It replaces the entry of the history: typing is no journey. */
export function setParams(changes: Record<string, string | null>): void {
  go(withParams(changes), true);
}

/** The address of this page with other parameters. */
export function withParams(changes: Record<string, string | null>): string {
  const next = new URLSearchParams(query.value);
  for (const [name, value] of Object.entries(changes)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  // Commas, colons and the like are legal in a query, and a link that people send should be readable.
  const text = next.toString().replace(/%2C/g, ",").replace(/%3A/g, ":").replace(/%2F/g, "/").replace(/%7E/g, "~");
  return path.value + (text ? `?${text}` : "");
}

interface Linked {
  to: string;
  class?: string;
  title?: string;
  "aria-current"?: "page";
  children?: ComponentChildren;
}

/** A link within the page: followed without loading anew, opened in a tab as any other. */
export function A({ to, children, ...rest }: Linked) {
  const follow = (event: MouseEvent) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(to);
  };
  return (
    <a href={to} onClick={follow} {...rest}>
      {children}
    </a>
  );
}
