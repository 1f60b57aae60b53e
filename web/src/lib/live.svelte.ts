/**
 * The current state in this tab: rows of every kind, alerts, measurements and the newest events, kept by the stream.
 *
 * Pages read it inside `$derived`: each kind has a version that counts batches of changes, so that a change of one
 * kind recomputes only what reads that kind. A row that changes is replaced: one that is the same object is the same.
 */
import { clock } from "./clock.svelte";
import type { Alert, Kind, LiveEvent, Metrics, Row, RowsByKind, SessionRow, Who } from "./model";
import { ON_WORKER } from "./model";
import { joinStream } from "./stream/client";
import type { Link } from "./stream/connection";
import type { ToTab } from "./stream/hub";
import type { Changes } from "./stream/ledger";

const KINDS: readonly Kind[] = [
  "LabWorker",
  "LabletSession",
  "LabWorkerPool",
  "LabletDefinition",
  "Reservation",
  "WorkerTemplate",
];
const MOST_EVENTS = 500;

type Tables = { [K in Kind]: Map<string, RowsByKind[K]> };

function emptyTables(): Tables {
  return Object.fromEntries(KINDS.map((kind) => [kind, new Map()])) as Tables;
}

function nameKey(kind: Kind, namespace: string, name: string): string {
  return `${kind}/${namespace}/${name}`;
}

function put(tables: Tables, names: Map<string, Row>, row: Row): void {
  const kind = row.kind as Kind;
  (tables[kind] as Map<string, Row>).set(row.uid, row);
  names.set(nameKey(kind, row.namespace, row.name), row);
}

class Live {
  /** Whether a complete state has been received. */
  complete = $state(false);
  link = $state.raw<Link>({ state: "connecting", contactAt: 0 });
  alerts = $state.raw<readonly Alert[]>([]);
  metrics = $state.raw<ReadonlyMap<string, Metrics>>(new Map());
  events = $state.raw<readonly LiveEvent[]>([]);

  #tables = emptyTables();
  #lists = new Map<Kind, readonly Row[]>();
  #names = new Map<string, Row>();
  #byWorker: ReadonlyMap<string, SessionRow[]> | null = null;
  /** A state of which parts have come; it is shown when it is whole. */
  #next: { tables: Tables; names: Map<string, Row> } | null = null;
  #versions = $state<Record<Kind, number>>(Object.fromEntries(KINDS.map((kind) => [kind, 0])) as Record<Kind, number>);
  #alerts = new Map<string, Alert>();
  #metrics = new Map<string, Metrics>();

  /** Begin to follow the stream as somebody. */
  join(who: Who): void {
    joinStream(
      who,
      (message) => this.#take(message),
      () => location.reload(), // its menus and names are those of somebody who is not signed in any more
    );
  }

  /** Return all rows of a kind, in no order; the same array until one of them changes. */
  rows<K extends Kind>(kind: K): readonly RowsByKind[K][] {
    void this.#versions[kind];
    let list = this.#lists.get(kind);
    if (!list) this.#lists.set(kind, (list = [...this.#tables[kind].values()]));
    return list as readonly RowsByKind[K][];
  }

  count(kind: Kind): number {
    void this.#versions[kind];
    return this.#tables[kind].size;
  }

  /** Return the row of a name; undefined if there is none, as far as is known. */
  find<K extends Kind>(kind: K, name: string, namespace = "default"): RowsByKind[K] | undefined {
    void this.#versions[kind];
    const found = this.#names.get(nameKey(kind, namespace, name)) ?? this.#tables[kind].get(name);
    return found as RowsByKind[K] | undefined;
  }

  /** Return the sessions of which something is on a worker, by the worker's uid. */
  sessionsByWorker(): ReadonlyMap<string, SessionRow[]> {
    void this.#versions.LabletSession;
    return (this.#byWorker ??= this.#groupByWorker());
  }

  #groupByWorker(): Map<string, SessionRow[]> {
    const found = new Map<string, SessionRow[]>();
    for (const session of this.rows("LabletSession")) {
      const uid = session.worker_id;
      if (!uid || !ON_WORKER.has(session.phase ?? "")) continue;
      const there = found.get(uid);
      if (there) there.push(session);
      else found.set(uid, [session]);
    }
    return found;
  }

  #take(message: ToTab): void {
    if (message.type === "who") return;
    if (message.type === "link") {
      this.#takeLink(message.link);
      this.#next = null;
      return;
    }
    // A hub that has only begun knows less than we do.
    if (message.type === "everything" && this.complete && !message.complete) {
      this.#takeLink(message.link);
      return;
    }
    if (message.more && message.changes.reset) {
      this.#next ??= { tables: emptyTables(), names: new Map() };
      for (const row of message.changes.rows) put(this.#next.tables, this.#next.names, row);
      return;
    }
    clock.ahead = message.ahead;
    if (message.type === "everything") this.#takeLink(message.link);
    this.#apply(message.changes);
    this.complete = message.complete;
  }

  #takeLink(link: Link): void {
    const contactAt = link.contactAt ? link.contactAt + clock.ahead : this.link.contactAt;
    this.link = { ...link, contactAt };
  }

  #apply(changes: Changes): void {
    const touched = new Set<Kind>();
    if (changes.reset) {
      this.#tables = this.#next?.tables ?? emptyTables();
      this.#names = this.#next?.names ?? new Map();
      this.#next = null;
      this.#alerts.clear();
      this.#metrics.clear();
      this.events = [];
      for (const kind of KINDS) touched.add(kind);
    }
    for (const row of changes.rows) {
      put(this.#tables, this.#names, row);
      touched.add(row.kind as Kind);
    }
    for (const key of changes.gone) {
      const [kind, uid] = key.split("/") as [Kind, string];
      this.#forget(kind, uid);
      touched.add(kind);
    }
    for (const kind of touched) {
      this.#lists.delete(kind);
      if (kind === "LabletSession") this.#byWorker = null;
      this.#versions[kind]++;
    }
    this.#applyAlerts(changes);
    this.#applyMetrics(changes);
    if (changes.events.length) this.events = [...this.events, ...changes.events].slice(-MOST_EVENTS);
  }

  #forget(kind: Kind, uid: string): void {
    const row = this.#tables[kind].get(uid);
    this.#tables[kind].delete(uid);
    if (!row) return;
    // Another object may have the name by now.
    const key = nameKey(kind, row.namespace, row.name);
    if (this.#names.get(key)?.uid === uid) this.#names.delete(key);
  }

  #applyAlerts(changes: Changes): void {
    for (const [key, alert] of Object.entries(changes.alerts)) {
      if (alert) this.#alerts.set(key, alert);
      else this.#alerts.delete(key);
    }
    if (changes.reset || Object.keys(changes.alerts).length)
      this.alerts = [...this.#alerts.values()].sort((a, b) => (a.since < b.since ? 1 : -1));
  }

  #applyMetrics(changes: Changes): void {
    for (const [uid, metrics] of Object.entries(changes.metrics)) {
      if (metrics) this.#metrics.set(uid, metrics);
      else this.#metrics.delete(uid);
    }
    if (changes.reset || Object.keys(changes.metrics).length) this.metrics = new Map(this.#metrics);
  }
}

export const live = new Live();
