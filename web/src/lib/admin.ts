/** Settings, audit and sinks in words, and what is sent for a change. Pure. */
import type { AuditRecord, ShownSetting, Sink } from "./model";
import { count } from "./words";

/** Say why a sign-in at the provider came to nothing. */
const SIGN_IN_WORDS: Record<string, string> = {
  unfinished: "That sign-in was begun too long ago, or in another tab. Begin again.",
  used: "That sign-in was used already. Begin again.",
  denied: "You were not signed in: it was cancelled, or the provider declined.",
  provider: "The provider reports an error of its own. Try again in a moment.",
  unreachable: "The provider does not answer. Try again in a moment, or use a link.",
  setup: "Sign-in at the provider is not set up correctly here. Tell an administrator: the log says what is wrong.",
  identity: "What the provider sent does not prove who you are, so nobody was signed in. Begin again.",
  "no-name": "The provider names no verified e-mail address for you. Ask its administrators to verify it.",
  "no-role": "You are known to the provider, but you have no role here. Ask an administrator for one.",
  busy: "Too many sign-ins failed from here, or no answer can be given now. Wait a minute, then begin again.",
  full: "You have too many tokens and sessions here. Revoke some from where you are signed in.",
};

export function saySignInFailure(word: string): string {
  return word ? (SIGN_IN_WORDS[word] ?? "You were not signed in. Begin again.") : "";
}

/** Say where a setting's value comes from, in a few words. */
export function saySource(source: string): string {
  if (source === "settings object") return "set here";
  return source;
}

/** Which sources there are, for a filter: files and variables are named singly, so only their kind counts. */
export function sourceKind(source: string): string {
  if (source === "settings object") return "set here";
  if (source === "default" || source === "command line") return source;
  return source.startsWith("environment") ? "environment" : "file";
}

/** Return the value that a document holds for what was typed. Raises an Error that says what is wrong. */
export function parseSetting(setting: ShownSetting, typed: string): unknown {
  const text = typed.trim();
  switch (setting.type) {
    case "boolean":
      return text === "true";
    case "number": {
      const number = Number(text);
      if (text === "" || Number.isNaN(number)) throw new Error(`Write ${setting.form}.`);
      return number;
    }
    case "list":
      return text
        .split(",")
        .map((part) => part.trim())
        .filter(Boolean);
    default:
      if (text === "") throw new Error(`Write ${setting.form}.`);
      return text;
  }
}

/** Return the merge patch of the settings object that sets one field; null leaves it to the other sources. */
export function settingPatch(field: string, value: unknown): { spec: Record<string, Record<string, unknown>> } {
  const [group = "", name = ""] = field.split(".");
  return { spec: { [group]: { [name]: value } } };
}

/** Say what a record is about, in a line. */
export function sayDeeds(record: AuditRecord): string {
  const told = record.deeds.slice(0, 3).map((deed) => `${deed.verb} ${deed.kind} ${deed.name}`.trim());
  const more = record.deeds.length - told.length;
  return more > 0 ? `${told.join(", ")} and ${more} more` : told.join(", ");
}

/** Say how a sink does, with a tone. */
export function sinkState(sink: Sink): { word: string; tone: "good" | "warn" | "bad" | "quiet" } {
  if (sink.enabled === false) return { word: "Off", tone: "quiet" };
  const status = sink.status;
  if (!status) return { word: "New", tone: "quiet" };
  if (status.failures) return { word: `Failing, ${count(status.failures, "try", "tries")}`, tone: "bad" };
  if (status.dead_letters) return { word: count(status.dead_letters, "dead letter"), tone: "warn" };
  return status.last_success_at ? { word: "Delivers", tone: "good" } : { word: "Nothing sent yet", tone: "quiet" };
}
