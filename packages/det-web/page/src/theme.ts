// Dark or light: what the system prefers, until one says otherwise; that is remembered by this browser.
import { signal } from "@preact/signals";

const system = matchMedia("(prefers-color-scheme: dark)");
const said = () => localStorage.getItem("theme");
export const dark = signal(said() ? said() === "dark" : system.matches);

function apply(): void {
  document.documentElement.dataset.theme = dark.value ? "dark" : "light";
}

export function startTheme(): void {
  apply();
  system.addEventListener("change", () => {
    if (said()) return;
    dark.value = system.matches;
    apply();
  });
}

export function switchTheme(): void {
  dark.value = !dark.value;
  if (dark.value === system.matches) localStorage.removeItem("theme");
  else localStorage.setItem("theme", dark.value ? "dark" : "light");
  apply();
}
