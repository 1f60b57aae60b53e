/** Definitions: their families and versions, what was observed of them, and what follows from a change. Pure. */
import type {
  DefinitionRow,
  LabGraph,
  ObservationReport,
  ReservationRow,
  ResourceRequirements,
  SessionRow,
} from "./model";
import { ENDED } from "./model";
import type { TopologyLink, TopologyNode } from "./topology";
import { count } from "./words";

/** The name without its version. */
export function familyOf(name: string): string {
  return name.split(":")[0] ?? name;
}

/** Order versions: numbers by their value, 1.10 after 1.9; with a suffix before the same without one. */
export function compareVersions(a: string, b: string): number {
  const [one, other] = [a.split("-"), b.split("-")];
  const [first, second] = [one[0]?.split(".") ?? [], other[0]?.split(".") ?? []];
  for (let place = 0; place < Math.max(first.length, second.length); place++) {
    const difference = Number(first[place] ?? 0) - Number(second[place] ?? 0);
    if (difference) return difference;
  }
  if (one.length !== other.length) return one.length > other.length ? -1 : 1;
  return a < b ? -1 : a > b ? 1 : 0;
}

/** Return all versions of a family, the newest first. */
export function versionsOf(rows: readonly DefinitionRow[], family: string, namespace: string): DefinitionRow[] {
  return rows
    .filter((row) => familyOf(row.name) === family && row.namespace === namespace)
    .sort((a, b) => compareVersions(b.version ?? "", a.version ?? ""));
}

/** Propose the version after the newest: its second number one higher. */
export function nextVersion(newest: string | undefined): string {
  if (!newest) return "1.0.0";
  const numbers = (newest.split("-")[0] ?? "").split(".").map(Number);
  return [numbers[0] ?? 1, (numbers[1] ?? 0) + 1, ...numbers.slice(2).map(() => 0)].join(".");
}

export function sayNeeds(needs: ResourceRequirements | null | undefined): string {
  if (!needs) return "not known";
  const round = (value: number): string => value.toLocaleString([], { maximumFractionDigits: 3 });
  return `${round(needs.cpu_cores)} CPU, ${round(needs.memory_gb)} GB memory, ${round(needs.storage_gb ?? 0)} GB disk`;
}

/** Say which versions of CML a lab runs on. */
export function sayVersions(wanted: { cml_version_min?: string | null; cml_version_max?: string | null }): string {
  const { cml_version_min: least, cml_version_max: most } = wanted;
  if (least && most) return `${least} to ${most}`;
  return most ? `${most} or older` : `${least} or newer`;
}

export type Statistic = "p95" | "max" | "avg";

/** What a statistic of the observations would declare; rounded up, so that nobody gets less than was observed. */
export function needsBy(report: ObservationReport, by: Statistic): ResourceRequirements | null {
  const of = (measure: string): number | undefined =>
    report.measures.find((one) => one.measure === measure)?.observed?.[by];
  const [cores, memory, disk] = [of("cpu_cores"), of("memory_mb"), of("storage_mb")];
  if (!cores || !memory) return null;
  return {
    cpu_cores: Math.ceil(cores * 1000) / 1000,
    memory_gb: Math.ceil(memory) / 1024,
    storage_gb: disk ? Math.ceil(disk) / 1024 : (report.declared?.storage_gb ?? 0),
  };
}

export function sameNeeds(a: ResourceRequirements | null, b: ResourceRequirements | null): boolean {
  return a?.cpu_cores === b?.cpu_cores && a?.memory_gb === b?.memory_gb && a?.storage_gb === b?.storage_gb;
}

const MEASURES: Record<string, string> = { cpu_cores: "CPU", memory_mb: "Memory", storage_mb: "Disk" };

export function sayMeasure(measure: string): string {
  return MEASURES[measure] ?? measure;
}

/** Say an amount of a measure with its unit. */
export function sayAmount(measure: string, value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const shown = measure === "cpu_cores" ? value : value / 1024;
  const precision = shown < 1 ? { maximumSignificantDigits: 2 } : { maximumFractionDigits: 2 };
  return `${shown.toLocaleString([], precision)}${measure === "cpu_cores" ? "" : " GB"}`;
}

export interface Use {
  /** Sessions that are not over. */
  sessions: SessionRow[];
  ended: number;
  reservations: ReservationRow[];
}

const OVER: ReadonlySet<string> = new Set([...ENDED, "CANCELLED"]);

/** Return who uses a definition, as far as the caller sees. */
export function useOf(
  name: string,
  namespace: string,
  sessions: readonly SessionRow[],
  reservations: readonly ReservationRow[],
): Use {
  const isOf = (one: SessionRow | ReservationRow): boolean => one.definition === name && one.namespace === namespace;
  const own = sessions.filter(isOf);
  const alive = own.filter(({ phase }) => !OVER.has(phase ?? ""));
  return {
    sessions: alive,
    ended: own.length - alive.length,
    reservations: reservations.filter((one) => isOf(one) && !OVER.has(one.phase ?? "")),
  };
}

export type DefinitionVerb = "activate" | "deprecate" | "delete";

/** Return what can be done with a definition in its state. */
export function definitionVerbs(state: string): DefinitionVerb[] {
  return state === "active" ? ["deprecate", "delete"] : ["activate", "delete"];
}

export const DEFINITION_WORDS: Record<DefinitionVerb, { button: string; title: string; done: string }> = {
  activate: { button: "Make it bookable", title: "Make bookable", done: "can be booked" },
  deprecate: { button: "Deprecate", title: "Deprecate", done: "can no longer be booked" },
  delete: { button: "Delete", title: "Delete", done: "is deleted" },
};

/** Say what follows. */
export function definitionConsequences(verb: DefinitionVerb, use: Use, others: readonly DefinitionRow[]): string[] {
  const booked = use.sessions.length + use.reservations.length;
  const next = others.find(({ phase }) => phase === "active");
  const instead = next
    ? `Who books the lab without a version gets ${next.version} from now on.`
    : "No other version can be booked: nobody can book this lab from now on.";
  switch (verb) {
    case "activate":
      return ["People can book it at once.", "Who books the lab without a version gets the newest that can be booked."];
    case "deprecate":
      return [
        "Nobody can book this version any more.",
        instead,
        booked
          ? `${count(booked, "booking")} of it stay as they are, and run as promised.`
          : "Nothing of it is booked at present.",
      ];
    case "delete":
      return [
        booked || use.ended
          ? `${count(booked, "booking")} and ${count(use.ended, "session")} that ended refer to it: while any does, it is not deleted. Deprecate it instead.`
          : "Nothing refers to it.",
        "Its observations and, if nothing else uses it, its lab file are removed. That cannot be undone.",
        instead,
      ];
  }
}

/** A lab's graph as the picture of a topology takes it. */
export function drawnGraph(graph: LabGraph): { nodes: TopologyNode[]; links: TopologyLink[] } {
  return { nodes: graph.nodes, links: graph.links.map(({ n1, n2 }) => ({ from: n1, to: n2 })) };
}
