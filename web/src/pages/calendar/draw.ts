/** Draws the machines in view on a canvas: their planned time, their bookings as stacked bars, and the present. */
import type { Bar, Drag, Tick } from "../../lib/calendar";
import type { CalendarRow } from "../../lib/model";
import { toneOf } from "../../lib/words";

const LOWEST_ROW = 34;
const HIGHEST_ROW = 104;
const INSET = 4;
const LABEL_ROOM = 46;
/** A bar that is lower than this has no room for an outline. */
const SOLID = 5;

/** Return how high a machine's line is: few machines use the room that there is. */
export function rowHeight(machines: number, room: number): number {
  return Math.round(Math.min(HIGHEST_ROW, Math.max(LOWEST_ROW, room / Math.max(1, machines))));
}

export interface Line {
  row: CalendarRow;
  bars: Bar[];
}

export interface Scene {
  lines: readonly Line[];
  /** How high a line is. */
  high: number;
  /** How far the first line has been scrolled out of view. */
  offset: number;
  since: number;
  until: number;
  now: number;
  ticks: readonly Tick[];
  pointed: Bar | null;
  dragged: Drag | null;
}

/** The colours of the page, read when a drawing begins: light and dark differ. */
function coloursOf(element: HTMLElement): (name: string) => string {
  const style = getComputedStyle(element);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

export function drawScene(canvas: HTMLCanvasElement, width: number, height: number, scene: Scene): void {
  const context = canvas.getContext("2d");
  if (!context || width <= 0) return;
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  const colour = coloursOf(canvas);
  const at = (moment: number): number => ((moment - scene.since) / (scene.until - scene.since)) * width;
  for (const tick of scene.ticks) {
    context.fillStyle = colour(tick.strong ? "line-strong" : "line");
    context.globalAlpha = tick.strong ? 0.5 : 0.8;
    context.fillRect(Math.round(at(tick.at)), 0, 1, height);
  }
  context.globalAlpha = 1;
  context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
  context.textBaseline = "middle";
  for (const [number, line] of scene.lines.entries())
    drawLine(context, line, number * scene.high - scene.offset, width, at, scene, colour);
  if (scene.dragged) drawGhost(context, scene.dragged, scene, at, colour);
  const here = at(scene.now);
  if (here >= 0 && here <= width) {
    context.fillStyle = colour("bad");
    context.fillRect(Math.round(here) - 1, 0, 2, height);
  }
}

function drawLine(
  context: CanvasRenderingContext2D,
  { row, bars }: Line,
  top: number,
  width: number,
  at: (moment: number) => number,
  scene: Scene,
  colour: (name: string) => string,
): void {
  const room = scene.high - 2 * INSET;
  context.fillStyle = colour("line");
  context.fillRect(0, top + scene.high - 1, width, 1);
  context.fillStyle = colour("sunken");
  // What it must do is of the time to come.
  for (const run of row.runs ?? []) {
    const [from, to] = [at(Math.max(scene.now, Date.parse(run.start))), at(Date.parse(run.end))];
    if (to > Math.max(0, from) && from < width)
      context.fillRect(Math.max(0, from), top + INSET, Math.min(width, to) - Math.max(0, from), room);
  }
  for (const bar of bars) {
    if (bar.end <= scene.since || bar.start >= scene.until) continue;
    drawBar(context, bar, top + INSET, room, width, at, bar === scene.pointed, colour);
  }
}

/** Draw where the slot of what is dragged would be. */
function drawGhost(
  context: CanvasRenderingContext2D,
  { bar, row, start }: Drag,
  scene: Scene,
  at: (moment: number) => number,
  colour: (name: string) => string,
): void {
  const number = scene.lines.findIndex((line) => line.row === row);
  if (number < 0) return;
  const room = scene.high - 2 * INSET;
  const top = number * scene.high - scene.offset + INSET + (1 - bar.high) * room;
  const { slot } = bar.booked;
  const from = at(start);
  const long = Math.max(4, at(start + Date.parse(slot.end) - Date.parse(slot.start)) - from);
  const high = Math.max(4, (bar.high - bar.low) * room - 1);
  context.fillStyle = colour("accent-soft");
  context.globalAlpha = 0.75;
  context.fillRect(from, top, long, high);
  context.globalAlpha = 1;
  context.strokeStyle = colour("accent");
  context.lineWidth = 2;
  context.setLineDash([5, 3]);
  context.strokeRect(from + 1, top + 1, Math.max(1, long - 2), Math.max(1, high - 2));
  context.setLineDash([]);
}

function drawBar(
  context: CanvasRenderingContext2D,
  bar: Bar,
  top: number,
  room: number,
  width: number,
  at: (moment: number) => number,
  pointed: boolean,
  colour: (name: string) => string,
): void {
  const { booked } = bar;
  const tone = booked.kind === "Reservation" ? "warn" : booked.kind ? toneOf(booked.phase ?? "") : "quiet";
  const from = Math.max(-2, at(bar.start));
  const long = Math.max(2, Math.min(width + 2, at(bar.end)) - from - 1);
  const high = Math.max(2, (bar.high - bar.low) * room - 1);
  const y = top + (1 - bar.high) * room;
  context.fillStyle = colour(high < SOLID ? tone : `${tone}-soft`);
  context.fillRect(from, y, long, high);
  if (high < SOLID && !pointed) return;
  context.strokeStyle = colour(tone);
  context.lineWidth = pointed ? 2 : 1;
  context.strokeRect(from + 0.5, y + 0.5, Math.max(1, long - 1), Math.max(1, high - 1));
  // The slot itself: what stands around it is the time to start and to remove the lab.
  const [slotFrom, slotTo] = [at(Date.parse(booked.slot.start)), at(Date.parse(booked.slot.end))];
  context.fillStyle = colour(tone);
  context.globalAlpha = 0.35;
  context.fillRect(Math.max(from, slotFrom), y, Math.min(from + long, slotTo) - Math.max(from, slotFrom), high);
  context.globalAlpha = 1;
  if (high >= 12 && long >= LABEL_ROOM && booked.name) {
    context.save();
    context.beginPath();
    context.rect(Math.max(0, from) + 4, y, long - 8, high);
    context.clip();
    context.fillStyle = colour("text");
    context.fillText(booked.name, Math.max(0, from) + 5, y + high / 2);
    context.restore();
  }
}
