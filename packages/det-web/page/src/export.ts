// What is seen as a file: rows as CSV, pictures as PNG or SVG. Nothing leaves the machine; the browser saves what it holds.
import type { Value } from "./format";

function save(name: string, blob: Blob): void {
  const address = URL.createObjectURL(blob);
  const link = Object.assign(document.createElement("a"), { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** A field as RFC 4180 has it; what a spreadsheet would take for a formula is kept from being one. */
function field(value: Value): string {
  if (value == null) return "";
  if (typeof value === "number") return String(value);
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  const safe = /^[=+\-@\t]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function csv(rows: Value[][]): string {
  return rows.map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
}

export function saveCsv(name: string, rows: Value[][]): void {
  save(`${name}.csv`, new Blob([csv(rows)], { type: "text/csv" }));
}

/** A canvas on the page's own background: a PNG without one is black where it is pasted. */
export function savePng(name: string, canvas: HTMLCanvasElement): void {
  const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
  const paper = copy.getContext("2d")!;
  paper.fillStyle = getComputedStyle(document.body).backgroundColor;
  paper.fillRect(0, 0, copy.width, copy.height);
  paper.drawImage(canvas, 0, 0);
  copy.toBlob((blob) => blob && save(`${name}.png`, blob), "image/png");
}

/** A picture with the colours that it has on the page, which a file cannot take from a style sheet. */
export function saveSvg(name: string, picture: SVGSVGElement): void {
  const copy = picture.cloneNode(true) as SVGSVGElement;
  const old = picture.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((each, i) => {
    const style = getComputedStyle(old[i]!);
    for (const key of ["fill", "stroke", "stroke-width", "font-size", "font-family", "text-anchor"])
      each.setAttribute(key, style.getPropertyValue(key));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  const [x, y, width, height] = (picture.getAttribute("viewBox") ?? "0 0 100% 100%").split(" ") as [string, string, string, string];
  for (const [key, value] of Object.entries({ x, y, width, height })) paper.setAttribute(key, value);
  paper.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
  copy.prepend(paper);
  save(`${name}.svg`, new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
}
