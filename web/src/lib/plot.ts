/**
 * The one way in which plots are drawn, in the pages and in a plan's report: colours from the page's tokens, time below
 * in a zone, values at the pointer in the legend.
 */
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { SeatRow } from "./series";

const HEIGHT = 200;
const DAY = 86_400;
const SEAT_HEIGHT = 16;
/** From one mark of time to the next: a minute, and no less, to four weeks. */
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080, 20160, 40320].map((one) => one * 60);

function token(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export interface Line {
  label: string;
  /** A token of tokens.css. */
  colour: string;
  /** A level that holds until the next, instead of a slope. */
  stepped?: boolean;
  filled?: boolean;
  dashed?: boolean;
}

export interface Lines {
  data: uPlot.AlignedData;
  lines: readonly Line[];
  width: number;
  /** Without one, from 0 to the highest value. */
  most?: number;
  unit?: string;
  zone?: string;
  /** Without one, from the first to the last moment. */
  span?: readonly [number, number];
  /** A moment to mark. */
  now?: number;
  /** Whether the legend tells how it is now, or was last, while nobody points at a moment. */
  latest?: boolean;
}

/** The colour of the n-th track of a plot. */
export function plotColour(place: number): string {
  return `--plot-${(place % 8) + 1}`;
}

function makeAxis(): uPlot.Axis {
  return {
    stroke: () => token("--muted"),
    grid: { stroke: () => token("--line"), width: 1 },
    ticks: { stroke: () => token("--line"), width: 1 },
    font: `12px ${token("--font")}`,
  };
}

/** Time below: days where a step is a day, else hours, with the day at midnight. */
function timeAxis(zone: string | undefined): uPlot.Axis {
  const options = zone ? { timeZone: zone } : {};
  const day = new Intl.DateTimeFormat(undefined, { ...options, day: "numeric", month: "short" });
  const time = new Intl.DateTimeFormat("en-GB", { ...options, hour: "2-digit", minute: "2-digit" });
  const say = (tick: number, step: number): string => {
    const clock = time.format(tick * 1000);
    return step >= DAY || clock === "00:00" ? day.format(tick * 1000) : clock;
  };
  return {
    ...makeAxis(),
    incrs: STEPS,
    values: (_, ticks, __, ___, step) => ticks.map((tick) => say(tick, step)),
  };
}

/** Return the place of the moment that is the last, or the last before `now`. */
function latestOf(data: uPlot.AlignedData, now: number | undefined): number {
  const moments = data[0];
  const after = now === undefined ? -1 : moments.findIndex((at) => at > now);
  return (after < 0 ? moments.length : after) - 1;
}

function timeSeries(zone: string | undefined, rest: number | null = null): uPlot.Series {
  const format = new Intl.DateTimeFormat(undefined, {
    ...(zone ? { timeZone: zone } : {}),
    day: "numeric",
    month: "short",
    hour: "2-digit",
    minute: "2-digit",
    hour12: false,
  });
  return {
    label: "Time",
    value: (_, at) => ((at ?? rest) === null ? "–" : format.format((at ?? rest ?? 0) * 1000)),
  };
}

function zoned(zone: string | undefined): Pick<uPlot.Options, "tzDate"> {
  return zone ? { tzDate: (at) => uPlot.tzDate(new Date(at * 1000), zone) } : {};
}

/** Mark a moment by a dashed line with a word. */
function markNow(plot: uPlot, now: number): void {
  const { ctx, bbox } = plot;
  const at = Math.round(plot.valToPos(now, "x", true));
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = token("--bad");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(at, bbox.top);
  ctx.lineTo(at, bbox.top + bbox.height);
  ctx.stroke();
  ctx.font = `${12 * devicePixelRatio}px ${token("--font")}`;
  ctx.textAlign = "right";
  ctx.textBaseline = "top";
  ctx.fillText("now", at - 4 * devicePixelRatio, bbox.top + 2 * devicePixelRatio);
  ctx.restore();
}

/** Draw lines over time. */
export function drawLines(
  target: HTMLElement,
  { data, lines, width, most, unit = "", zone, span, now, latest }: Lines,
): uPlot {
  const sign = unit ? ` ${unit}` : "";
  const whole = (value: number): string => value.toLocaleString([], { maximumFractionDigits: 1 });
  const rest = latest ? latestOf(data, now) : -1;
  const series = lines.map(({ label, colour, stepped, filled, dashed }, place): uPlot.Series => {
    const shown = (): string => token(colour);
    return {
      label,
      stroke: shown,
      width: 2,
      points: { show: false },
      value: (_, pointed, __, at) => {
        const value = at === null ? data[place + 1]?.[rest] : pointed;
        return value === null || value === undefined ? "–" : `${whole(value)}${sign}`;
      },
      ...(dashed ? { dash: [6, 4] } : {}),
      ...(stepped ? { paths: uPlot.paths.stepped?.({ align: 1 }) as uPlot.Series.PathBuilder } : {}),
      ...(filled ? { fill: () => `color-mix(in srgb, ${token(colour)} 14%, transparent)` } : {}),
    };
  });
  return new uPlot(
    {
      width,
      height: HEIGHT,
      ...zoned(zone),
      scales: {
        ...(span ? { x: { range: [...span] as [number, number] } } : {}),
        y: { range: (_, __, high) => [0, most ?? Math.max(1, high * 1.05)] },
      },
      hooks: { draw: now === undefined ? [] : [(plot) => markNow(plot, now)] },
      axes: [
        timeAxis(zone),
        {
          ...makeAxis(),
          size: 58,
          values: (_, ticks) => ticks.map((tick) => (tick % 1 ? "" : `${whole(tick)}${sign}`)),
        },
      ],
      series: [timeSeries(zone, data[0][rest] ?? null), ...series],
    },
    data,
    target,
  );
}

export interface Bars {
  days: readonly string[];
  /** Of each track, the value of each day. */
  tracks: readonly { label: string; values: readonly number[] }[];
  width: number;
}

/** Draw a bar for each day, the tracks one on the other. */
export function drawBars(target: HTMLElement, { days, tracks, width }: Bars): uPlot {
  const day = new Intl.DateTimeFormat(undefined, { timeZone: "UTC", day: "numeric", month: "short" });
  const say = (place: number): string => (days[place] ? day.format(Date.parse(`${days[place]}T00:00:00Z`)) : "");
  const heights = days.map((_, place) => {
    let level = 0;
    return tracks.map(({ values }) => (level += values[place] ?? 0));
  });
  // The highest is drawn first, and the others over it.
  const order = tracks.map((_, place) => place).reverse();
  const series = order.map((track): uPlot.Series => {
    const colour = (): string => token(plotColour(track));
    return {
      label: tracks[track]?.label ?? "",
      stroke: colour,
      fill: colour,
      points: { show: false },
      paths: uPlot.paths.bars?.({ size: [0.7, 80] }) as uPlot.Series.PathBuilder,
      value: (_, __, ___, place) =>
        place === null || place === undefined ? "–" : (tracks[track]?.values[place] ?? 0).toFixed(2),
    };
  });
  const data = [days.map((_, place) => place), ...order.map((track) => heights.map((level) => level[track] ?? 0))];
  return new uPlot(
    {
      width,
      height: HEIGHT,
      scales: {
        x: { time: false, range: [-0.5, days.length - 0.5] },
        y: { range: (_, __, high) => [0, high * 1.05 || 1] },
      },
      axes: [
        {
          ...makeAxis(),
          grid: { show: false },
          incrs: [1, 2, 7, 14, 28, 56],
          values: (_, ticks) => ticks.map((tick) => (tick % 1 ? "" : say(tick))),
        },
        { ...makeAxis(), size: 58 },
      ],
      series: [{ label: "Day", value: (_, place) => (place === null ? "–" : say(place)) }, ...series],
    },
    data as uPlot.AlignedData,
    target,
  );
}

export interface Seats {
  rows: readonly SeatRow[];
  since: number;
  until: number;
  width: number;
  zone?: string;
}

export function seatsHeight(rows: number): number {
  return rows * SEAT_HEIGHT + 70;
}

/** Draw planned workers over time: a row for each, the fuller the darker. What is below the pointer is told. */
export function drawSeats(target: HTMLElement, { rows, since, until, width, zone }: Seats): uPlot {
  const time = timeSeries(zone).value as (plot: unknown, at: number) => string;
  const tell = (plot: uPlot): void => {
    const at = plot.posToVal(plot.cursor.left ?? -1, "x");
    const row = rows[rows.length - 1 - Math.floor(plot.posToVal(plot.cursor.top ?? -1, "y"))];
    const found = row?.stretches.find((one) => one.since <= at && at < one.until);
    plot.over.title = row && found ? `${row.label}, ${time(plot, at)}: ${found.said}` : "";
  };
  const draw = (plot: uPlot): void => {
    const { ctx } = plot;
    ctx.save();
    for (const [place, row] of rows.entries()) {
      ctx.fillStyle = token(row.colour);
      const top = plot.valToPos(rows.length - place, "y", true) + 1;
      const height = plot.valToPos(rows.length - place - 1, "y", true) - top - 1;
      for (const one of row.stretches) {
        const left = plot.valToPos(one.since, "x", true);
        ctx.globalAlpha = 0.25 + 0.75 * Math.min(one.share, 1);
        ctx.fillRect(left, top, Math.max(plot.valToPos(one.until, "x", true) - left, 1), height);
      }
    }
    ctx.restore();
  };
  return new uPlot(
    {
      width,
      height: seatsHeight(rows.length),
      ...zoned(zone),
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      scales: { x: { range: [since, until] }, y: { range: [0, rows.length] } },
      axes: [
        timeAxis(zone),
        {
          ...makeAxis(),
          size: 90,
          grid: { show: false },
          ticks: { show: false },
          splits: () => rows.map((_, place) => rows.length - place - 0.5),
          values: () => rows.map(({ label }) => label),
        },
      ],
      series: [{}, { show: false }],
      hooks: { draw: [draw], setCursor: [tell] },
    },
    [
      [since, until],
      [null, null],
    ],
    target,
  );
}
