/** Why a console is not connected, in words, and what follows from it. Pure. */
import { saySentence } from "../words";

export interface Ending {
  text: string;
  /** Whether it may heal by itself, so that it is tried again. */
  heals: boolean;
}

const CODES: Record<number, Ending> = {
  1000: { text: "The node closed the connection.", heals: true },
  1001: { text: "The server is restarting.", heals: true },
  1011: { text: "The server met a fault of its own.", heals: true },
  4401: { text: "You are no longer signed in here. Sign in again, then reconnect.", heals: false },
  4403: { text: "It did something that is not possible while one only looks along.", heals: false },
  4409: { text: "The lab no longer runs, so its consoles are closed.", heals: false },
  4503: { text: "The machine does not answer at this port; the node may be booting.", heals: true },
};

/** Say why a connection that had been open was closed. */
export function sayClosed(code: number, reason: string): Ending {
  const known = CODES[code];
  if (known) return known;
  return reason ? { text: `Closed: ${reason}.`, heals: false } : { text: "The connection was lost.", heals: true };
}

/** Say why a connection could not be opened, from what the server answers to a plain request for the same. */
export function sayRefused(status: number, detail: string): Ending {
  if (status === 401) return CODES[4401] as Ending;
  if (status === 426) return { text: "The connection could not be opened.", heals: true };
  if (status === 0) return { text: "The server does not answer.", heals: true };
  if (status === 404) return { text: "There is no such console, or it is somebody else's.", heals: false };
  return { text: saySentence(detail), heals: status === 429 || status >= 500 };
}

const WAITS_S = [1, 2, 4, 8, 15];
const MOST_TRIES = 40;

/** How long to wait before the next of several tries; null when it is time to give up. */
export function waitBefore(tries: number): number | null {
  if (tries >= MOST_TRIES) return null;
  return (WAITS_S[Math.min(tries, WAITS_S.length - 1)] ?? 15) * 1000;
}

/** Somebody else who has a console of this lab open. */
export interface Guest {
  who: string;
  role: string;
  console: string;
  looking: boolean;
}

interface Notice extends Guest {
  type: string;
}

/** The guests after a notice of the server; a notice that cannot be read changes nothing. */
export function withNotice(guests: readonly Guest[], text: string): readonly Guest[] {
  let notice: Notice;
  try {
    notice = JSON.parse(text) as Notice;
  } catch {
    return guests;
  }
  const { type, who, role, console, looking } = notice;
  const place = guests.findIndex((one) => one.who === who && one.console === console && one.looking === looking);
  if (type === "joined") return [...guests, { who, role, console, looking }];
  return type === "left" && place >= 0 ? guests.filter((_, index) => index !== place) : guests;
}

/** Say who else is there, each once. */
export function sayGuests(guests: readonly Guest[]): string[] {
  const said = guests.map(({ who, role, console, looking }) =>
    looking ? `${who} (${role}) looks along at ${console}.` : `${who} (${role}) uses ${console}.`,
  );
  return [...new Set(said)];
}
