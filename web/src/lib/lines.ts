/** What of a long text is shown: lines with marks or messages, some around them, and how many are left out. Pure. */
import type { ProblemError } from "./api";
import { capitalise } from "./words";

export interface TextLine {
  /** What stands in the margin: a line number, or one for each of two texts. */
  numbers: readonly (number | null)[];
  text: string;
  mark?: "added" | "removed" | "bad" | "warn";
  messages?: readonly string[];
}

export interface Gap {
  left_out: number;
}

export interface Message {
  /** Null for a message about the file as a whole. */
  line: number | null;
  text: string;
}

type Fault = ProblemError["faults"][number];

const AT_LINE = /(?:^|: )line (\d+)(?:: |$)/;
const WHOLE_LINES = 1_500;
const AROUND = 3;
const MOST_SHOWN = 3_000;
const LONGEST_LINE = 400;

/** Read where a fault stands, and say it in one sentence. */
export function messageOf({ path, problem, remedy }: Fault): Message {
  const found = AT_LINE.exec(path);
  const rest = path.replace(AT_LINE, "").replace(/^spec\.topology$/, "");
  const said = rest && rest !== "document" ? `${rest}: ${problem}` : problem;
  return { line: found ? Number(found[1]) : null, text: remedy ? `${said}. ${capitalise(remedy)}.` : `${said}.` };
}

/** Put messages beside the lines of a text; one beyond its end stands at its last line. */
export function withMessages(lines: readonly string[], messages: readonly Message[], mark: "bad" | "warn"): TextLine[] {
  const byLine = new Map<number, string[]>();
  for (const { line, text } of messages) {
    if (line === null) continue;
    const place = Math.max(1, Math.min(line, lines.length));
    byLine.set(place, [...(byLine.get(place) ?? []), text]);
  }
  const given = lines.length ? lines : [""];
  return given.map((text, index) => {
    const said = byLine.get(index + 1);
    return said ? { numbers: [index + 1], text, mark, messages: said } : { numbers: [index + 1], text };
  });
}

/** Return a short text whole; of a long one, or where only `changes` matter, what is marked and some lines around. */
export function chooseLines(lines: readonly TextLine[], changesOnly = false): (TextLine | Gap)[] {
  if (!changesOnly && lines.length <= WHOLE_LINES) return lines.map(cut);
  const wanted = new Set<number>();
  for (const [place, { mark, messages }] of lines.entries()) {
    if (!mark && !messages) continue;
    for (let near = place - AROUND; near <= place + AROUND; near++) wanted.add(near);
  }
  if (wanted.size === 0) for (let place = 0; place < WHOLE_LINES && !changesOnly; place++) wanted.add(place);
  const shown: (TextLine | Gap)[] = [];
  let skipped = 0;
  let count = 0;
  for (const [place, line] of lines.entries()) {
    if (!wanted.has(place) || count >= MOST_SHOWN) {
      skipped++;
      continue;
    }
    if (skipped) shown.push({ left_out: skipped });
    skipped = 0;
    count++;
    shown.push(cut(line));
  }
  if (skipped) shown.push({ left_out: skipped });
  return shown;
}

function cut(line: TextLine): TextLine {
  return line.text.length > LONGEST_LINE ? { ...line, text: `${line.text.slice(0, LONGEST_LINE)}…` } : line;
}
