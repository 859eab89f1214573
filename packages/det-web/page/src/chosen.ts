// Which rows are chosen, to be compared or tagged together; going to another page forgets them.
import { effect, signal } from "@preact/signals";
import { path } from "./address";

export const chosen = signal<ReadonlySet<number>>(new Set());

export function choose(id: number): void {
  const next = new Set(chosen.value);
  if (!next.delete(id)) next.add(id);
  chosen.value = next;
}

export function clearChosen(): void {
  if (chosen.peek().size) chosen.value = new Set();
}

effect(() => {
  void path.value;
  clearChosen();
});
