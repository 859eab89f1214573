// A chart of any number of lines, each with its own xs: a zoom by dragging, the nearest line named, marks for what happened.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { saveCsv, savePng } from "./export";
import { duration, num } from "./format";
import { useWidth } from "./parts";
import { numeric, type Scale } from "./scales";
import { dark } from "./theme";

export interface Line {
  label: string;
  x: number[];
  y: (number | null)[];
  color: string;
  /** The colour is mixed with the paper's by so much; 1 where it is not said. */
  alpha?: number;
  width?: number;
  /** Points that are marked: those of a validation, the best. */
  dots?: boolean;
  open?: () => void;
}

/** Something that happened at a place of the x axis. */
export interface Mark {
  x: number;
  text: string;
  color: string;
  y?: number;
}

interface Props {
  name: string;
  lines: Line[];
  marks?: Mark[];
  x?: "number" | "seconds";
  xLabel: string;
  log?: boolean;
  logX?: boolean;
  range?: [number, number] | null;
  onZoom?: (range: [number, number] | null) => void;
  height?: number;
  tools?: ComponentChildren;
  /** Of more lines than a legend holds, so many are named: those that are drawn last. */
  legend?: number;
  onWidth?: (pixels: number) => void;
  /** What is said in the picture's place while there is no line, so that nothing moves when the first one comes. */
  empty?: string;
}

/** The room around the lines for the axes, in pixels. */
const [LEFT, RIGHT, TOP, BOTTOM] = [64, 12, 8, 40];

/** The smallest and greatest of what is drawn, with some air; a log axis has no place for what is not positive. */
function extent(lines: Line[], of: "x" | "y", log: boolean, range?: [number, number] | null): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const line of lines)
    for (let i = 0; i < line.x.length; i++) {
      const value = line[of][i];
      if (value == null || (log && value <= 0) || line.y[i] == null) continue;
      if (range && (line.x[i]! < range[0] || line.x[i]! > range[1])) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (of === "x") return low === high ? (log ? [low / 2, high * 2] : [low - 1, high + 1]) : [low, high];
  if (log) return [low / 1.1, high * 1.1];
  const air = (high - low) * 0.04 || Math.abs(high) * 0.1 || 1;
  return [low - air, high + air];
}

/** Where the values lie in the picture, in pixels. */
interface Frame {
  x: Scale;
  y: Scale;
  px: (x: number) => number;
  py: (y: number) => number;
  width: number;
  height: number;
}

function frameOf({ lines, log, logX, range }: Props, width: number, height: number): Frame {
  const x = numeric("x", ...(range ?? extent(lines, "x", !!logX)), !!logX);
  const y = numeric("y", ...extent(lines, "y", !!log, range), !!log);
  const px = (value: number) => LEFT + x.at(value)! * (width - LEFT - RIGHT);
  const py = (value: number) => TOP + (1 - y.at(value)!) * (height - TOP - BOTTOM);
  return { x, y, px, py, width, height };
}

export function Chart(props: Props) {
  const { lines, marks, range, log, logX, height = 280 } = props;
  const [box, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const frame = useRef<Frame | null>(null);
  const [near, setNear] = useState<Near | null>(null);
  const [drag, setDrag] = useState<[number, number] | null>(null);
  useEffect(() => {
    if (width) props.onWidth?.(Math.round((width - LEFT - RIGHT) * devicePixelRatio));
  }, [width]);
  useEffect(() => {
    if (!width) return;
    const made = (frame.current = frameOf(props, width, height));
    const board = canvas.current!;
    board.width = width * devicePixelRatio;
    board.height = height * devicePixelRatio;
    const ctx = board.getContext("2d")!;
    ctx.scale(devicePixelRatio, devicePixelRatio);
    drawAxes(ctx, made, props);
    drawLines(ctx, made, props, near?.line ?? null);
    board.dataset.drawn = String(lines.length);
  }, [width, height, lines, marks, range?.[0], range?.[1], log, logX, near?.line, dark.value]);

  const inside = (event: PointerEvent) => Math.max(LEFT, Math.min(width - RIGHT, event.clientX - box.current!.getBoundingClientRect().left));
  const onMove = (event: PointerEvent) => {
    if (drag) return setDrag([drag[0], inside(event)]);
    const at = box.current!.getBoundingClientRect();
    setNear(frame.current && nearest(frame.current, props, event.clientX - at.left, event.clientY - at.top));
  };
  const onDown = (event: PointerEvent) => {
    if (event.button || !props.onZoom) return;
    box.current!.setPointerCapture(event.pointerId);
    setDrag([inside(event), inside(event)]);
  };
  const onUp = () => {
    if (!drag) return;
    setDrag(null);
    const [from, to] = [Math.min(...drag), Math.max(...drag)].map((at) => frame.current!.x.value((at - LEFT) / (width - LEFT - RIGHT)));
    if (Math.abs(drag[1] - drag[0]) > 4) props.onZoom!([from!, to!]);
    else near?.line.open?.();
  };
  const saveRows = () => saveCsv(props.name, [["line", props.xLabel, "value"], ...props.lines.flatMap((l) => l.x.map((x, i) => [l.label, x, l.y[i]]))]);
  const few = props.lines.length > 1 && (props.lines.length <= 12 || !!props.legend);
  const named = props.lines.length <= 12 ? props.lines : props.lines.slice(-(props.legend ?? 0));
  // In the order of their names, as that of the best changes while a search runs.
  const legend = props.legend ? [...named].sort((a, b) => a.label.localeCompare(b.label, undefined, { numeric: true })) : named;
  return (
    <figure class="chart" aria-label={props.name}>
      <figcaption>
        <b>{props.name}</b>
        <span class="tools">
          {props.tools}
          {props.range && <button onClick={() => props.onZoom?.(null)}>Whole</button>}
          <button onClick={() => savePng(props.name, canvas.current!)}>PNG</button>
          <button onClick={saveRows}>CSV</button>
        </span>
      </figcaption>
      <div
        class="plot"
        ref={box}
        style={{ height: `${height}px` }}
        onPointerMove={onMove}
        onPointerDown={onDown}
        onPointerUp={onUp}
        onPointerLeave={() => setNear(null)}
        onDblClick={() => props.onZoom?.(null)}
      >
        <canvas ref={canvas} style={{ width: `${width}px`, height: `${height}px` }} role="img" aria-label={described(props)} />
        {props.empty && !lines.length && <p class="empty">{props.empty}</p>}
        {drag && <span class="zooming" style={{ left: `${Math.min(...drag)}px`, width: `${Math.abs(drag[1] - drag[0])}px` }} />}
        {near && !drag && (
          <span class="near" style={{ left: `${Math.max(0, Math.min(near.left + 12, width - 200))}px`, top: `${near.top}px` }}>
            {near.text}
          </span>
        )}
      </div>
      <ul class="legend">
        {few &&
          legend.map((line) => (
            <li key={line.label} title={line.label}>
              <i style={{ background: line.color }} />
              {line.label}
            </li>
          ))}
        {few && named.length < props.lines.length && <li class="dim">and {num(props.lines.length - named.length)} more: point at a line</li>}
        {props.marks?.filter((mark, i, all) => all.findIndex((m) => m.text === mark.text) === i).slice(0, 8).map((mark) => (
          <li key={mark.text} title={mark.text} class={mark.y == null ? "event" : undefined}>
            <i class="mark" style={{ background: mark.color }} />
            {mark.text}
          </li>
        ))}
      </ul>
    </figure>
  );
}

/** What the picture says, for who does not see it. */
function described({ name, lines }: Props): string {
  const ends = lines.slice(0, 3).map((line) => {
    const last = line.y.findLast((y) => y != null);
    return `${line.label} ends at ${num(last)}`;
  });
  return `${name}: ${lines.length} lines; ${ends.join(", ")}`;
}

function drawAxes(ctx: CanvasRenderingContext2D, { x, y, width, height }: Frame, props: Props): void {
  const style = getComputedStyle(document.documentElement);
  const text = props.x === "seconds" ? duration : num;
  const [wide, high] = [width - LEFT - RIGHT, height - TOP - BOTTOM];
  ctx.font = "12px system-ui";
  ctx.fillStyle = style.getPropertyValue("--dim");
  ctx.strokeStyle = style.getPropertyValue("--grid");
  ctx.beginPath();
  ctx.textAlign = "center";
  let free = 0; // labels that would touch are left out
  for (const { at } of x.ticks) {
    const [place, label] = [LEFT + at * wide, text(x.value(at))];
    ctx.moveTo(place, TOP);
    ctx.lineTo(place, TOP + high);
    const half = ctx.measureText(label).width / 2;
    if (place - half < free) continue;
    ctx.fillText(label, place, TOP + high + 16);
    free = place + half + 8;
  }
  ctx.fillText(props.xLabel, LEFT + wide / 2, height - 6);
  ctx.textAlign = "right";
  for (const { at, text: label } of y.ticks) {
    const place = TOP + (1 - at) * high;
    ctx.moveTo(LEFT, place);
    ctx.lineTo(LEFT + wide, place);
    ctx.fillText(label, LEFT - 6, place + 4);
  }
  ctx.stroke();
}

function drawLines(ctx: CanvasRenderingContext2D, { px, py, width, height }: Frame, { lines, marks, log }: Props, hit: Line | null): void {
  ctx.save();
  ctx.beginPath();
  ctx.rect(LEFT - 4, TOP - 4, width - LEFT - RIGHT + 8, height - TOP - BOTTOM + 8); // a dot at the edge is whole
  ctx.clip();
  ctx.lineJoin = "round";
  const faint = hit || lines.length > 100 ? 0.6 : 1;
  for (const line of hit ? [...lines, hit] : lines) {
    ctx.globalAlpha = line === hit ? 1 : (line.alpha ?? 1) * faint;
    ctx.strokeStyle = ctx.fillStyle = line.color;
    ctx.lineWidth = line === hit ? 2.5 : (line.width ?? 1.25);
    ctx.beginPath();
    let pen = false;
    for (let i = 0; i < line.x.length; i++) {
      const y = line.y[i];
      if (y == null || (log && y <= 0)) {
        pen = false;
        continue;
      }
      const [left, top] = [px(line.x[i]!), py(y)];
      if (pen) ctx.lineTo(left, top);
      else ctx.moveTo(left, top);
      pen = true;
      if (line.dots || line.x.length === 1) ctx.fillRect(left - 2, top - 2, 4, 4);
    }
    ctx.stroke();
  }
  ctx.globalAlpha = 1;
  for (const mark of marks ?? []) {
    ctx.strokeStyle = ctx.fillStyle = mark.color;
    ctx.lineWidth = 1;
    ctx.beginPath();
    if (mark.y !== undefined) {
      ctx.arc(px(mark.x), py(mark.y), 5, 0, 7);
      ctx.fill();
    } else {
      ctx.setLineDash([4, 4]);
      ctx.moveTo(px(mark.x), TOP);
      ctx.lineTo(px(mark.x), height);
      ctx.stroke();
      ctx.setLineDash([]);
    }
  }
  ctx.restore();
}

interface Near {
  line: Line;
  text: string;
  left: number;
  top: number;
}

/** The point that is nearest to the pointer, within 24 pixels. */
function nearest({ x, px, py, width }: Frame, { lines, x: kind, log }: Props, left: number, top: number): Near | null {
  let best = { distance: 24 * 24, line: null as Line | null, at: 0 };
  const value = (at: number) => x.value((at - LEFT) / (width - LEFT - RIGHT));
  const [from, to] = [value(left - 24), value(left + 24)];
  for (const line of lines)
    for (let i = 0; i < line.x.length; i++) {
      const [at, y] = [line.x[i]!, line.y[i]];
      if (at < from || at > to || y == null || (log && y <= 0)) continue;
      const distance = (px(at) - left) ** 2 + (py(y) - top) ** 2;
      if (distance < best.distance) best = { distance, line, at: i };
    }
  if (!best.line) return null;
  const at = best.line.x[best.at]!;
  return { line: best.line, left, top, text: `${best.line.label}: ${num(best.line.y[best.at])} at ${kind === "seconds" ? duration(at) : num(at)}` };
}
