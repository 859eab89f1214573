// Parallel coordinates of any number of trials. Drawn in slices, one a frame, so that ten thousand lines never hold up a click.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { setParams } from "./address";
import { savePng } from "./export";
import { writeBrush, type Brush } from "./filter";
import { count, type Value } from "./format";
import { Section, useWidth } from "./parts";
import { goodness, ramp, type Scale } from "./scales";
import { dark } from "./theme";

interface Props {
  axes: { scale: Scale; values: Value[] }[];
  metric: Value[];
  smallerIsBetter: boolean;
  /** The rows that the table shows; the others are drawn faintly. */
  shown: number[];
  brush: Brush;
  onBrush: (brush: Brush) => void;
}

const [TOP, BOTTOM, SIDE, HEIGHT] = [34, 26, 56, 300];
const SLICE = 1000; // lines a frame
const COLORS = 16;

export function Parallel({ axes, metric, smallerIsBetter, shown, brush, onBrush }: Props) {
  const [box, boxWidth] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = Math.max(boxWidth, axes.length * 84); // narrower than that it scrolls
  const X = (axis: number) => SIDE + (axes.length > 1 ? (axis * (width - 2 * SIDE)) / (axes.length - 1) : 0);
  const span = HEIGHT - TOP - BOTTOM;
  const Y = (at: number | null) => (at === null ? NaN : TOP + (1 - at) * span);
  const good = useMemo(() => goodness(metric, smallerIsBetter), [metric, smallerIsBetter]);
  const best = useMemo(() => [...good.keys()].sort((a, b) => (good[a] ?? -1) - (good[b] ?? -1)), [good]);
  // The heights of all lines, once for as long as the values are the same: a brush only chooses among them.
  const heights = useMemo(() => axes.map(({ scale, values }) => Float32Array.from(values, (v) => Y(scale.at(v)))), [axes]);

  useEffect(() => {
    if (!boxWidth) return;
    const ctx = canvas.current!.getContext("2d")!;
    const ratio = devicePixelRatio;
    const total = metric.length;
    const inside = new Uint8Array(total);
    for (const i of shown) inside[i] = 1;
    // First what is not chosen, then the chosen from bad to good: the good ones end on top.
    const faint = shown.length < total ? [...inside.keys()].filter((i) => !inside[i]) : [];
    const queue = [...faint, ...best.filter((i) => inside[i])];
    let at = 0;
    let frame = 0;
    const slice = () => {
      if (!at) {
        canvas.current!.width = width * ratio; // which clears it: what was drawn stays until there is something new
        canvas.current!.height = HEIGHT * ratio;
        ctx.scale(ratio, ratio);
        ctx.lineWidth = 1;
      }
      for (const end = Math.min(queue.length, at + SLICE); at < end; ) {
        const key = colorOf(queue[at]!);
        ctx.strokeStyle = key < 0 ? (dark.value ? "#888" : "#999") : ramp(key / (COLORS - 1));
        ctx.globalAlpha = key < 0 ? Math.max(0.02, Math.min(0.15, 100 / total)) : Math.max(0.08, Math.min(0.9, (60 / shown.length) * (1 + key)));
        ctx.beginPath();
        for (; at < end && colorOf(queue[at]!) === key; at++)
          // A line ends where there is no value: at no height of the axis, so that nothing looks like a good or bad one.
          for (let axis = 0, on = false; axis < axes.length; axis++) {
            const y = heights[axis]![queue[at]!]!;
            if (on && !Number.isNaN(y)) ctx.lineTo(X(axis), y);
            else if (!Number.isNaN(y)) ctx.moveTo(X(axis), y);
            on = !Number.isNaN(y);
          }
        ctx.stroke();
      }
      if (at < queue.length) frame = requestAnimationFrame(slice);
      else canvas.current!.dataset.drawn = String(queue.length);
    };
    const colorOf = (i: number) => (inside[i] ? Math.floor((good[i] ?? 0) * (COLORS - 1)) : -1);
    delete canvas.current!.dataset.drawn;
    frame = requestAnimationFrame(slice); // the table is there first, and a brush that moves on costs nothing here
    return () => cancelAnimationFrame(frame);
  }, [axes, heights, shown, width, !boxWidth, dark.value, good]);

  const drag = (axis: number) => (event: PointerEvent) => {
    const { scale } = axes[axis]!;
    const top = (event.currentTarget as Element).getBoundingClientRect().top;
    const place = (e: PointerEvent) => Math.max(0, Math.min(1, 1 - (e.clientY - top - TOP) / span));
    const start = place(event);
    const { [scale.name]: _, ...others } = brush;
    let next: Brush = others;
    let frame = 0;
    const move = (e: PointerEvent) => {
      const [low, high] = [Math.min(start, place(e)), Math.max(start, place(e))];
      next = high - low < 0.01 && !scale.categories ? others : { ...others, [scale.name]: between(scale, low, high) };
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => onBrush(next));
    };
    const up = (e: PointerEvent) => {
      removeEventListener("pointermove", move);
      move(e);
      // A click on a brushed category takes the brush away.
      if (scale.categories && Math.abs(place(e) - start) < 0.01 && scale.name in brush) next = others;
      cancelAnimationFrame(frame);
      onBrush(next);
      setParams({ brush: writeBrush(next) });
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", up, { once: true });
    event.preventDefault();
  };

  const clear = () => (onBrush({}), setParams({ brush: null }));
  const without = metric.filter((value) => value == null).length;
  const tools = (
    <>
      {without > 0 && (
        <span class="dim" title="Their lines end before the axis of the metric.">
          {count(without, "trial")} without a value
        </span>
      )}
      <button disabled={!Object.keys(brush).length} onClick={clear}>
        Clear brush
      </button>
      <button onClick={() => savePng("parallel coordinates", canvas.current!)}>PNG</button>
    </>
  );
  return (
    <Section title="Parallel coordinates" tools={tools}>
      <div class="parallel scrolled" ref={box}>
        <div style={{ width: `${width}px`, height: `${HEIGHT}px` }}>
          <canvas ref={canvas} style={{ width: `${width}px`, height: `${HEIGHT}px` }} aria-hidden />
          <svg width={width} height={HEIGHT} role="img" aria-label="Axes: drag along one to filter the table">
            {axes.map(({ scale }, axis) => (
              <g key={scale.name} transform={`translate(${X(axis)} 0)`}>
                <text y={14} class="name">
                  <title>{scale.name}</title>
                  {short(scale.name)}
                </text>
                <line y1={TOP} y2={TOP + span} />
                {scale.ticks.map(({ at, text }) => (
                  <text key={text} x={6} y={Y(at) + 4} class="tick">
                    {short(text)}
                  </text>
                ))}
                {brush[scale.name] && <Brushed scale={scale} range={brush[scale.name]!} Y={Y} />}
                <rect class="handle" data-axis={scale.name} x={-22} y={0} width={44} height={HEIGHT} onPointerDown={drag(axis)} />
              </g>
            ))}
          </svg>
        </div>
      </div>
    </Section>
  );
}

const short = (name: string) => (name.length > 16 ? `${name.slice(0, 7)}…${name.slice(-8)}` : name);

/** What a stretch of an axis means: a range of numbers, or the categories whose places lie in it. */
function between(scale: Scale, low: number, high: number): Brush[string] {
  if (!scale.categories) return [scale.value(low), scale.value(high)];
  return scale.categories.slice(scale.value(low), scale.value(high) + 1);
}

function Brushed({ scale, range, Y }: { scale: Scale; range: Brush[string]; Y: (at: number | null) => number }) {
  let [low, high] = [1, 0];
  const half = scale.categories ? 0.4 / scale.categories.length : 0;
  for (const value of range) {
    const at = scale.at(value as Value) ?? 0;
    low = Math.min(low, at - half);
    high = Math.max(high, at + half);
  }
  return <rect class="brushed" x={-8} width={16} y={Y(high)} height={Math.max(3, Y(low) - Y(high))} />;
}
