// The keyboard: one listener, the newest claim on a key wins, and typing in a field is typing.
import { signal } from "@preact/signals";
import { useLayoutEffect } from "preact/hooks";
import { Dialog } from "./parts";

type Claims = Record<string, (event: KeyboardEvent) => void>;
const claims: Claims[] = [];
const helping = signal(false);

/** Claims keys for as long as a part of the page is there. */
export function useKeys(keys: Claims, deps: unknown[]): void {
  useLayoutEffect(() => { // before anybody can press a key on what is seen
    claims.push(keys);
    return () => void claims.splice(claims.indexOf(keys), 1);
  }, deps);
}

export function startKeys(): void {
  addEventListener("keydown", (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented) return;
    const target = event.target as HTMLElement;
    const typing = target.matches("input:not([type=checkbox]), textarea, select");
    if (typing) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return; // it has keys of its own
    if (event.key === "?") return void (helping.value = true);
    if (event.key === "Enter" && target.matches("a, button, summary")) return;
    const claim = claims.findLast((each) => event.key in each);
    if (!claim) return;
    event.preventDefault();
    claim[event.key]!(event);
  });
}

const KEYS: [string, string][] = [
  ["j, k or ↓, ↑", "next and previous row"],
  ["Enter", "open the row"],
  ["x", "choose the row, to compare"],
  ["c", "compare the chosen, or open TensorBoard on them"],
  ["/", "type a filter"],
  ["[ and ]", "previous and next section"],
  ["g", "all experiments"],
  ["l", "the latest experiment"],
  ["d", "dark or light"],
  ["Esc", "leave a field, close a window, clear brushes and choices"],
  ["?", "this list"],
];

export function KeysHelp() {
  if (!helping.value) return null;
  const close = () => (helping.value = false);
  return (
    <Dialog title="Keys" onClose={close}>
      <table class="plain">
        <tbody>
          {KEYS.map(([key, text]) => (
            <tr key={key}>
              <th scope="row">
                <kbd>{key}</kbd>
              </th>
              <td>{text}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <button onClick={close}>Close</button>
    </Dialog>
  );
}

export const helpButton = () => (helping.value = true);
