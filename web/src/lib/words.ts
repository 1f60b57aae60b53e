/** How moments, spans, amounts and phases are said. Pure. */

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

// Made once: to make one takes a hundred times as long as to use it.
const TIME = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit" });
const SECONDS = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY_ALONE = new Intl.DateTimeFormat([], { day: "numeric", month: "short" });
const NEAR_DAY = new Intl.DateTimeFormat([], { weekday: "short", day: "numeric", month: "short" });
const BARE_DAY = new Intl.DateTimeFormat([], { weekday: "short", day: "numeric" });
const FAR_DAY = new Intl.DateTimeFormat([], { weekday: "short", day: "numeric", month: "short", year: "numeric" });

/** Say a moment in the viewer's zone: the time today, else with the day. */
export function sayMoment(moment: string | number, now: number): string {
  const date = new Date(moment);
  const time = TIME.format(date);
  if (date.toDateString() === new Date(now).toDateString()) return time;
  const near = Math.abs(date.getTime() - now) < 300 * DAY;
  return `${(near ? NEAR_DAY : FAR_DAY).format(date)}, ${time}`;
}

/** Say a moment in the viewer's zone to the second: the time today, else with the day. */
export function sayExactly(moment: string | number, now: number): string {
  const date = new Date(moment);
  const time = SECONDS.format(date);
  return date.toDateString() === new Date(now).toDateString() ? time : `${DAY_ALONE.format(date)}, ${time}`;
}

/** Say what the clock shows at a moment. */
export function sayTime(moment: number): string {
  return TIME.format(moment);
}

/** Say the day of a moment, in as little room as there is; with the month if it is wanted. */
export function sayDay(moment: number, month = false): string {
  return (month ? NEAR_DAY : BARE_DAY).format(moment);
}

/** A day of the viewer's zone as fields and the API write it: 2031-11-03. */
export function asDate(moment: number | Date): string {
  const date = new Date(moment);
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
}

/** A moment as a field of local date and time has it: 2031-11-03T09:00. */
export function asField(moment: number | Date): string {
  const date = new Date(moment);
  return `${asDate(date)}T${pad(date.getHours())}:${pad(date.getMinutes())}`;
}

function pad(part: number): string {
  return String(part).padStart(2, "0");
}

/** Say a moment in UTC, to the second. */
export function sayUtc(moment: string | number): string {
  return `${new Date(moment).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** A day as the API writes it, in words: "Sat 21 Nov 2026". */
export function sayDate(date: string): string {
  return FAR_DAY.format(new Date(`${date}T00:00`));
}

const WRITTEN = /(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d(?:\.\d+)?)?) ?(?:Z|UTC)/;

/** Take a text apart at the moments in UTC that it has: each becomes one to say in the viewer's zone. */
export function splitMoments(text: string): (string | { at: string })[] {
  const found = WRITTEN.exec(text);
  if (!found) return text ? [text] : [];
  const end = found.index + found[0].length;
  return [
    ...(found.index ? [text.slice(0, found.index)] : []),
    { at: `${found[1]}T${found[2]}Z` },
    ...splitMoments(text.slice(end)),
  ];
}

/** Say how long something takes: two units at most. */
export function saySpan(milliseconds: number): string {
  const rest = Math.abs(milliseconds);
  if (rest < MINUTE) return `${Math.round(rest / 1000)} s`;
  if (rest < HOUR) return `${Math.floor(rest / MINUTE)} min`;
  if (rest < DAY) return two(Math.floor(rest / HOUR), "h", Math.floor((rest % HOUR) / MINUTE), "min");
  return two(Math.floor(rest / DAY), "d", Math.floor((rest % DAY) / HOUR), "h");
}

/** Say a countdown: minutes and seconds in the last hour. */
export function sayCountdown(milliseconds: number): string {
  if (milliseconds >= HOUR) return saySpan(milliseconds);
  const seconds = Math.max(0, Math.ceil(milliseconds / 1000));
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}

/** Say how far a moment is from now: "in 5 min", "3 h ago". */
export function sayDistance(moment: string | number, now: number): string {
  const distance = new Date(moment).getTime() - now;
  if (Math.abs(distance) < 5_000) return "now";
  return distance > 0 ? `in ${saySpan(distance)}` : `${saySpan(distance)} ago`;
}

function two(first: number, unit: string, second: number, other: string): string {
  return second ? `${first} ${unit} ${second} ${other}` : `${first} ${unit}`;
}

export function sayCores(millis: number): string {
  return `${(millis / 1000).toLocaleString([], { maximumFractionDigits: 1 })} CPU`;
}

export function sayMemory(megabytes: number): string {
  if (megabytes < 1024) return `${megabytes} MB`;
  return `${(megabytes / 1024).toLocaleString([], { maximumFractionDigits: 2 })} GB`;
}

export function sayDollars(amount: number): string {
  return `${amount.toLocaleString([], { minimumFractionDigits: 2, maximumFractionDigits: 2 })} USD`;
}

export function count(number: number, one: string, many = `${one}s`): string {
  return `${number.toLocaleString()} ${number === 1 ? one : many}`;
}

export type Tone = "good" | "busy" | "warn" | "bad" | "quiet";

const TONES: Record<string, Tone> = {
  READY: "good",
  ACTIVE: "good",
  RUNNING: "good",
  READY_UNLICENSED: "warn",
  DRAINING: "warn",
  FAILED: "bad",
  EXPIRED: "bad",
  COMPLETED: "quiet",
  TERMINATED: "quiet",
  STOPPED: "quiet",
  CANCELLED: "quiet",
  active: "good",
  draft: "busy",
  deprecated: "quiet",
  critical: "bad",
  warning: "warn",
};

/** The tone of a phase; one that is neither good nor over is on its way. */
export function toneOf(phase: string): Tone {
  return TONES[phase] ?? "busy";
}

const PHASES: Record<string, string> = {
  PROVISIONING_EC2: "Launching",
  EC2_READY: "Booting",
  READY_UNLICENSED: "Ready, no licence",
  TERMINATING_EC2: "Terminating",
  INSTANTIATING: "Starting",
  PENDING: "Waiting",
  SCHEDULED: "Booked",
  COLLECTING: "Saving",
};

/** Say a phase as people do. */
export function sayPhase(phase: string): string {
  const said = PHASES[phase];
  if (said) return said;
  return capitalise(phase.replaceAll("_", " ").toLowerCase());
}

/** Begin with a capital letter. */
export function capitalise(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Say a reason as a sentence. */
export function saySentence(reason: string): string {
  const text = capitalise(reason);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
