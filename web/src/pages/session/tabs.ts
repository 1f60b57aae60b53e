/** The tabs of a session's page. To add one, write a component here and a row below: it is loaded when it is opened. */
import type { Component } from "svelte";
import type { LabletSession, SessionRow } from "../../lib/model";

/** What a tab is given: the row, which is always current, and the whole object, once it is read. */
export interface TabProps {
  row: SessionRow;
  session: LabletSession | undefined;
  /** Whether it is in sight; a tab that is kept is there without being shown. */
  shown: boolean;
  /** Read the whole object again. */
  refresh: () => void;
}

export interface Tab {
  /** The last part of the address; "" is the first tab. */
  key: string;
  title: string;
  load: () => Promise<{ default: Component<TabProps> }>;
  /** Whether there is anything to show; without it, always. */
  when?: (row: SessionRow) => boolean;
  /** Whether it stays as it is while another tab is shown. */
  keep?: boolean;
}

export const TABS: readonly Tab[] = [
  { key: "", title: "Overview", load: () => import("./Overview.svelte") },
  {
    key: "consoles",
    title: "Consoles",
    load: () => import("./Consoles.svelte"),
    when: (row) => (row.consoles ?? 0) > 0,
    keep: true,
  },
  { key: "topology", title: "Topology", load: () => import("./Topology.svelte") },
  { key: "observed", title: "Observed", load: () => import("./Observed.svelte") },
  { key: "story", title: "Story", load: () => import("./SessionStory.svelte") },
];
