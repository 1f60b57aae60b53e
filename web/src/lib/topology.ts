/** What a topology's picture is given, and how its nodes' states are said. Pure. */
import type { Tone } from "./words";

export interface TopologyNode {
  /** What links name. */
  id: string;
  label: string;
  definition: string;
  /** Where its author put it; used if every node has a place. */
  x?: number | null;
  y?: number | null;
  /** CML's word for what it does now; nothing where only the file is known. */
  state?: string | null;
}

export interface TopologyLink {
  from: string;
  to: string;
}

const STATES: Record<string, [string, Tone]> = {
  DEFINED_ON_CORE: ["Not started", "quiet"],
  DEFINED: ["Not started", "quiet"],
  QUEUED: ["Queued", "busy"],
  STARTED: ["Booting", "busy"],
  BOOTED: ["Running", "good"],
  STOPPED: ["Stopped", "warn"],
  DISCONNECTED: ["Lost", "bad"],
};

/** Say a node's state in a word, with its tone. */
export function sayNodeState(state: string): [string, Tone] {
  return STATES[state] ?? [state.charAt(0) + state.slice(1).toLowerCase().replaceAll("_", " "), "quiet"];
}

/** The nodes of a lab file with what is known of their states, which are told by label; two of one label have none. */
export function withStates(
  nodes: readonly TopologyNode[],
  known: readonly { label: string; state: string }[],
): TopologyNode[] {
  const states = new Map<string, string | null>();
  for (const { label, state } of known) states.set(label, states.has(label) ? null : state);
  return nodes.map((node) => ({ ...node, state: states.get(node.label) ?? null }));
}

const NEAREST = 130;
const MOST_SPREAD = 4;

/** The places of the nodes, spread so far that no two overlap; null if any node has none. */
export function spread(nodes: readonly TopologyNode[]): Map<string, { x: number; y: number }> | null {
  const placed = nodes.map(({ id, x, y }) => (typeof x === "number" && typeof y === "number" ? { id, x, y } : null));
  if (!placed.length || placed.includes(null)) return null;
  const known = placed as { id: string; x: number; y: number }[];
  let nearest = Infinity;
  for (const [index, one] of known.entries())
    for (const other of known.slice(index + 1))
      nearest = Math.min(nearest, Math.max(Math.abs(one.x - other.x), Math.abs(one.y - other.y)));
  if (nearest === 0) return null;
  const factor = Math.min(MOST_SPREAD, Math.max(1, NEAREST / nearest));
  return new Map(known.map(({ id, x, y }) => [id, { x: x * factor, y: y * factor }]));
}
