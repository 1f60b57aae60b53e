/** Requests to our own API. What it refuses becomes a ProblemError, whose text is meant for people. */
import type { Problem } from "./model";
import { saySentence } from "./words";

export class ProblemError extends Error {
  constructor(
    readonly status: number,
    readonly reason: string,
    detail: string,
    readonly faults: readonly { path: string; problem: string; remedy?: string }[] = [],
    /** Slots near to a refused one that would be accepted. */
    readonly nearest: readonly { start: string; end: string }[] = [],
  ) {
    super(detail);
  }
}

type Query = Record<string, string | number | undefined>;

/** Read something. */
export function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  return send<T>("GET", path, undefined, query, { signal });
}

/** Read all pages of a list: one may be empty though others follow. */
export async function getAll<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<{ items: T[] }> {
  const items: T[] = [];
  let cursor: string | undefined;
  do {
    const page = await get<{ items: T[]; next?: string | null }>(path, { ...query, cursor }, signal);
    items.push(...page.items);
    cursor = page.next ?? undefined;
  } while (cursor !== undefined);
  return { items };
}

/**
 * Change something: the browser's session needs the value of its second cookie with each change. With `at` it is
 * changed only if it still has that revision.
 */
export function change<T>(
  method: "POST" | "PUT" | "PATCH" | "DELETE",
  path: string,
  body?: unknown,
  query: Query = {},
  at?: number,
): Promise<T> {
  return send<T>(method, path, body, query, { at });
}

/** Keys of creates of which no answer came, by what was asked. */
const unanswered = new Map<string, string>();

/**
 * Create something, once: if no answer came, whoever asks for exactly the same again sends the same key, and the
 * server answers with what it made the first time. Likewise an action; with `at`, of just that revision.
 */
export async function create<T>(path: string, body: unknown, at?: number): Promise<T> {
  const asked = `${path} ${JSON.stringify(body)}`;
  const key = unanswered.get(asked) ?? makeKey();
  unanswered.set(asked, key);
  try {
    const made = await send<T>("POST", path, body, {}, { key, at });
    unanswered.delete(asked);
    return made;
  } catch (error) {
    if (!isUnanswered(error)) unanswered.delete(asked);
    throw error;
  }
}

/** Whether it is not known if something was done: no answer came, or one that does not say. */
export function isUnanswered(error: unknown): boolean {
  return error instanceof ProblemError && (error.status === 0 || error.status >= 500);
}

/** Whether the same may go well if it is asked again: nobody answered, or there was no time for it. */
export function isPassing(error: unknown): boolean {
  return isUnanswered(error) || (error instanceof ProblemError && error.status === 429);
}

/** Make a key that nobody else has. `randomUUID` exists only where the page came by HTTPS, or from this machine. */
function makeKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Send a file as it is. */
export function upload<T>(path: string, text: string, media: string): Promise<T> {
  return send<T>("POST", path, text, {}, { media });
}

/** End this browser's session; returns where it also signs out at the provider, or "". */
export async function signOut(): Promise<string> {
  const answer = await ask("POST", "/api/sign-out", undefined, {});
  return answer.headers.get("location") ?? "";
}

interface Sending {
  signal?: AbortSignal | undefined;
  media?: string;
  at?: number | undefined;
  key?: string;
}

async function send<T>(method: string, path: string, body: unknown, query: Query, sending?: Sending): Promise<T> {
  const answer = await ask(method, path, body, query, sending);
  if (answer.status === 204) return undefined as T;
  try {
    return (await answer.json()) as T;
  } catch (error) {
    if (sending?.signal?.aborted) throw error;
    throw new ProblemError(0, "Unreachable", "The server's answer was cut off. Try again in a moment.");
  }
}

async function ask(
  method: string,
  path: string,
  body: unknown,
  query: Query,
  { signal, media = "application/json", at, key }: Sending = {},
): Promise<Response> {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  const headers: Record<string, string> = { accept: "application/json" };
  if (method !== "GET") headers["x-csrf-token"] = cookie("lcm_csrf");
  if (body !== undefined) headers["content-type"] = media;
  if (at !== undefined) headers["if-match"] = `"${at}"`;
  if (key) headers["idempotency-key"] = key;
  const init: RequestInit = { method, headers, cache: "no-store" };
  if (body !== undefined) init.body = media === "application/json" ? JSON.stringify(body) : (body as string);
  if (signal) init.signal = signal;
  let answer: Response;
  try {
    answer = await fetch(text ? `${path}?${text}` : path, init);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ProblemError(0, "Unreachable", "The server does not answer. Try again in a moment.");
  }
  if (!answer.ok) throw await readProblem(answer);
  return answer;
}

async function readProblem(answer: Response): Promise<ProblemError> {
  try {
    const problem = (await answer.json()) as Problem & { faults?: ProblemError["faults"] };
    const { reason, detail, title, faults, nearest } = problem;
    return new ProblemError(answer.status, reason, detail ?? title, faults ?? [], nearest ?? []);
  } catch {
    return new ProblemError(answer.status, "Unreadable", `The server answered ${answer.status}.`);
  }
}

function cookie(name: string): string {
  const wanted = location.protocol === "https:" ? `__Host-${name}` : name;
  const found = document.cookie.split("; ").find((pair) => pair.startsWith(`${wanted}=`));
  return found ? found.slice(wanted.length + 1) : "";
}

/** Say what went wrong, in words for people. */
export function describe(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Say what is wrong with what was filled in, without the paths that programs need. */
export function describeFaults(error: unknown): string {
  const faults = error instanceof ProblemError ? error.faults : [];
  if (!faults.length) return describe(error);
  return faults.map(({ problem, remedy }) => saySentence(remedy ? `${problem}: ${remedy}` : problem)).join(" ");
}
