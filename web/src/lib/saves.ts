/** What is saved of a session, and what can be continued from. Pure. */
import type { Artifact, LabletSession, SessionRow } from "./model";
import { ENDED } from "./model";

/** How many saves of a session are kept: the oldest goes when another comes. */
export const SAVES_KEPT = 5;
const LAB_FILE = "lab.yaml";
const SAVE_NAME = /^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$/;

/** A file of a session: a save under a name, the lab as it was at the end, or something else. */
export interface SavedFile {
  file: Artifact;
  /** The name of the save; null for what is none. */
  save: string | null;
  isLab: boolean;
  /** What it is, in a few words. */
  title: string;
}

/** Return the files of a session: the lab at its end first, then its saves, the newest first. */
export function savedFiles(session: LabletSession | undefined): SavedFile[] {
  const found = (session?.status?.artifacts ?? []).map((file): SavedFile => {
    const save = /^save-(.*)\.yaml$/.exec(file.name)?.[1] ?? null;
    const isLab = file.name === LAB_FILE;
    return { file, save, isLab, title: save ? `Save ${save}` : isLab ? "The lab as it ended" : file.name };
  });
  const rank = ({ isLab, save }: SavedFile): number => (isLab ? 0 : save ? 1 : 2);
  return found.sort((a, b) => rank(a) - rank(b) || Date.parse(b.file.collected_at) - Date.parse(a.file.collected_at));
}

export function saySize(bytes: number): string {
  return bytes < 10_000 ? `${bytes} bytes` : `${Math.round(bytes / 1000).toLocaleString()} kB`;
}

/** Return the address of the booking page that continues a session, or one of its saves. */
export function continueAddress(
  row: Pick<SessionRow, "name" | "namespace" | "definition">,
  save: string | null,
): string {
  const query = new URLSearchParams({ lab: row.definition ?? "", continue: row.name });
  if (save) query.set("save", save);
  if (row.namespace !== "default") query.set("namespace", row.namespace);
  return `/book?${query.toString()}`;
}

/** Say what is wrong with the name of a save; "" if nothing is, or there is none. */
export function findNameProblem(name: string): string {
  if (!name || SAVE_NAME.test(name)) return "";
  return "Use lower-case letters, digits and -, at most 40.";
}

/** Whether a session can be saved now: it runs. */
export function canSave(row: SessionRow): boolean {
  return row.phase === "RUNNING";
}

/** Whether there may be something to continue from: it is over, or it was saved. */
export function canContinue(row: SessionRow): boolean {
  return (row.files ?? 0) > 0 && ENDED.has(row.phase ?? "");
}

/** What a session that continues another says of that: whether its definition differs, and how. */
export function sayContinues(
  session: LabletSession | undefined,
): { from: string; differs: boolean; text: string } | null {
  const from = session?.status?.continues?.session ?? session?.spec.continue_from?.session;
  if (!session || !from) return null;
  const found = session.status?.conditions?.find(({ type }) => type === "Continues");
  return { from, differs: found?.reason === "DefinitionDiffers", text: found?.message ?? "" };
}
