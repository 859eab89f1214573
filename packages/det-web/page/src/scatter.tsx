// Two columns against each other: as points coloured by the metric, or as a heat map of its best or mean in each cell.
import { useEffect, useRef, useState } from "preact/hooks";
import { go, param, setParams } from "./address";
import { saveCsv, savePng } from "./export";
import { num, show, type Value } from "./format";
import { Choice, Empty, Section, useWidth } from "./parts";
import { goodness, ramp, type Scale } from "./scales";
import { dark } from "./theme";

interface Props {
  ids: number[];
  axes: { scale: Scale; values: Value[] }[];
  metric: Value[];
  metricName: string;
  smallerIsBetter: boolean;
  shown: number[];
}

const HEIGHT = 340;
const [LEFT, RIGHT, TOP, BOTTOM] = [72, 16, 10, 40];

export function Scatter({ ids, axes, metric, metricName, smallerIsBetter, shown }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [near, setNear] = useState<number | null>(null);
  const names = axes.map(({ scale }) => scale.name);
  const pick = (key: string, i: number) => axes[Math.max(0, names.indexOf(param(key, names[i] ?? names[0]!)))]!;
  const [x, y] = [pick("x", 0), pick("y", names.length - 1)];
  const kind = param("as", "points");
  const place = (axis: typeof x, i: number) => axis.scale.at(axis.values[i]);
  const px = (at: number) => LEFT + at * (width - LEFT - RIGHT);
  const py = (at: number) => TOP + (1 - at) * (HEIGHT - TOP - BOTTOM);

  useEffect(() => {
    if (!width) return;
    // While a brush moves, the table follows; this picture comes when the brush rests.
    const timer = setTimeout(draw, canvas.current!.dataset.drawn ? 150 : 0);
    return () => clearTimeout(timer);
  }, [width, x, y, kind, shown, metric, dark.value]);
  const draw = () => {
    const board = canvas.current!;
    board.width = width * devicePixelRatio;
    board.height = HEIGHT * devicePixelRatio;
    const ctx = board.getContext("2d")!;
    ctx.scale(devicePixelRatio, devicePixelRatio);
    const css = getComputedStyle(document.documentElement);
    drawAxes(ctx, x.scale, y.scale, px, py, width, css);
    const rows = shown.filter((i) => place(x, i) !== null && place(y, i) !== null && metric[i] != null);
    if (kind === "points") {
      const good = goodness(metric, smallerIsBetter);
      rows.sort((a, b) => good[a]! - good[b]!);
      const radius = rows.length > 2000 ? 2 : 3.5;
      ctx.globalAlpha = rows.length > 2000 ? 0.6 : 0.85;
      for (const i of rows) {
        ctx.fillStyle = ramp(good[i]!);
        ctx.beginPath();
        ctx.arc(px(place(x, i)!), py(place(y, i)!), radius, 0, 7);
        ctx.fill();
      }
    } else {
      drawCells(ctx, cells(rows, (i) => place(x, i)!, (i) => place(y, i)!, x.scale, y.scale, metric as number[], kind, smallerIsBetter), px, py, smallerIsBetter);
    }
    board.dataset.drawn = String(rows.length);
  };

  const nearest = (event: MouseEvent) => {
    const { left, top } = canvas.current!.getBoundingClientRect();
    let [found, least] = [null as number | null, 144];
    for (const i of shown) {
      const [ax, ay] = [place(x, i), place(y, i)];
      if (ax === null || ay === null) continue;
      const distance = (px(ax) - event.clientX + left) ** 2 + (py(ay) - event.clientY + top) ** 2;
      if (distance < least) [found, least] = [i, distance];
    }
    setNear(found);
  };
  const tools = (
    <>
      <Choice label="x" value={x.scale.name} from={names} onPick={(v) => setParams({ x: v })} />
      <Choice label="y" value={y.scale.name} from={names} onPick={(v) => setParams({ y: v })} />
      <Choice label="as" value={kind} from={["points", "best", "mean"]} onPick={(v) => setParams({ as: v === "points" ? null : v })} />
      <button onClick={() => savePng(`${y.scale.name} over ${x.scale.name}`, canvas.current!)}>PNG</button>
      <button onClick={() => saveCsv("scatter", [["trial", x.scale.name, y.scale.name, metricName], ...shown.map((i) => [ids[i], x.values[i], y.values[i], metric[i]])])}>
        CSV
      </button>
    </>
  );
  return (
    <Section title={kind === "points" ? "Scatter" : "Heat map"} tools={tools}>
      {names.length < 2 && <Empty>There is one column only; a second hyperparameter would give the other axis.</Empty>}
      <div class="scatter" ref={box} style={{ height: `${HEIGHT}px` }}>
        <canvas
          ref={canvas}
          style={{ width: `${width}px`, height: `${HEIGHT}px` }}
          role="img"
          aria-label={`${y.scale.name} over ${x.scale.name}, coloured by ${metricName}, ${shown.length} trials`}
          onMouseMove={nearest}
          onMouseLeave={() => setNear(null)}
          onClick={() => near !== null && go(`/t/${ids[near]}`)}
        />
        {near !== null && (
          <span class="near" style={{ left: `${Math.min(px(place(x, near)!) + 10, width - 190)}px`, top: `${py(place(y, near)!)}px` }}>
            trial {ids[near]}: {show(x.values[near])}, {show(y.values[near])}: {num(metric[near] as number)}
          </span>
        )}
      </div>
    </Section>
  );
}

function drawAxes(ctx: CanvasRenderingContext2D, x: Scale, y: Scale, px: (at: number) => number, py: (at: number) => number, width: number, css: CSSStyleDeclaration): void {
  ctx.font = "12px system-ui";
  ctx.fillStyle = css.getPropertyValue("--dim");
  ctx.strokeStyle = css.getPropertyValue("--grid");
  const line = (a: number, b: number, c: number, d: number) => (ctx.beginPath(), ctx.moveTo(a, b), ctx.lineTo(c, d), ctx.stroke());
  ctx.textAlign = "center";
  for (const { at, text } of x.ticks) {
    line(px(at), TOP, px(at), HEIGHT - BOTTOM);
    ctx.fillText(text.slice(0, 14), px(at), HEIGHT - BOTTOM + 15);
  }
  ctx.fillText(x.name, (LEFT + width) / 2, HEIGHT - 6);
  ctx.textAlign = "right";
  for (const { at, text } of y.ticks) {
    line(LEFT, py(at), width - RIGHT, py(at));
    ctx.fillText(text.slice(0, 10), LEFT - 6, py(at) + 4);
  }
  ctx.save();
  ctx.rotate(-Math.PI / 2);
  ctx.textAlign = "center";
  ctx.fillText(y.name, -(HEIGHT - BOTTOM) / 2, 12);
  ctx.restore();
}

interface Cell {
  at: [number, number];
  size: [number, number];
  value: number;
}

/** The best or the mean of the metric in each cell; a category has a cell of its own, numbers are parted in twelve. */
function cells(rows: number[], x: (i: number) => number, y: (i: number) => number, sx: Scale, sy: Scale, metric: number[], kind: string, smaller: boolean): Cell[] {
  const [nx, ny] = [sx.categories?.length ?? 12, sy.categories?.length ?? 12];
  const bins = new Map<number, number[]>();
  for (const i of rows) {
    const [cx, cy] = [Math.min(nx - 1, Math.floor(x(i) * nx)), Math.min(ny - 1, Math.floor(y(i) * ny))];
    const bin = bins.get(cx * ny + cy);
    if (bin) bin.push(metric[i]!);
    else bins.set(cx * ny + cy, [metric[i]!]);
  }
  const of = (values: number[]) =>
    kind === "mean" ? values.reduce((a, b) => a + b) / values.length : values.reduce((a, b) => (smaller ? Math.min(a, b) : Math.max(a, b)));
  return [...bins].map(([key, values]) => ({ at: [Math.floor(key / ny) / nx, (key % ny) / ny], size: [1 / nx, 1 / ny], value: of(values) }));
}

function drawCells(ctx: CanvasRenderingContext2D, found: Cell[], px: (at: number) => number, py: (at: number) => number, smaller: boolean): void {
  const good = goodness(found.map((cell) => cell.value), smaller);
  ctx.textAlign = "center";
  found.forEach(({ at: [x, y], size: [w, h], value }, i) => {
    const [left, top, wide, high] = [px(x), py(y + h), px(x + w) - px(x), py(y) - py(y + h)];
    ctx.fillStyle = ramp(good[i]!);
    ctx.fillRect(left + 0.5, top + 0.5, wide - 1, high - 1);
    if (wide < 44 || high < 16) return;
    ctx.fillStyle = "#fff";
    ctx.fillText(num(value), left + wide / 2, top + high / 2 + 4);
  });
}
