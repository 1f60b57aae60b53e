/**
 * What is known of the current state, from the event stream. Pure: frames in, changes out.
 *
 * Every row has the revision at which it was true, and is never replaced by one of a lower revision: not by a snapshot
 * that was read from a slower replica, and not by an event that is older than the snapshot. A history of another epoch
 * (a restored backup) replaces everything.
 */
import type { Alert, Kind, LiveEvent, Metrics, Ready, Row, RowSnapshot } from "../model";
import type { Frame } from "./frames";

export type RowKey = `${Kind}/${string}`;

interface Known {
  revision: number;
  /** null: it is gone, and what is older may not bring it back. */
  row: Row | null;
}

/** What changed; tabs apply it to what they have. */
export interface Changes {
  /** Everything known before is void. */
  reset: boolean;
  rows: Row[];
  gone: RowKey[];
  alerts: Record<string, Alert | null>;
  metrics: Record<string, Metrics | null>;
  events: LiveEvent[];
}

interface RowEvent {
  time: string;
  kind: string;
  name: string;
  namespace: string;
  data: Record<string, unknown>;
  row: Row | null;
}

interface Staging {
  rows: Row[];
  alerts: Alert[];
  metrics: Metrics[];
}

const MOST_EVENTS = 500;
const MOST_TOMBSTONES = 1000;

export const rowKey = (row: Row): RowKey => `${row.kind as Kind}/${row.uid}`;
export const alertKey = (alert: Alert): string => `${alert.kind}/${alert.namespace}/${alert.name}/${alert.alert}`;

export function noChanges(): Changes {
  return { reset: false, rows: [], gone: [], alerts: {}, metrics: {}, events: [] };
}

export function isEmpty(changes: Changes): boolean {
  const { reset, rows, gone, alerts, metrics, events } = changes;
  const some = rows.length + gone.length + events.length + Object.keys(alerts).length + Object.keys(metrics).length;
  return !reset && some === 0;
}

export class Ledger {
  /** The id of the last event: a stream that begins there misses nothing. */
  position = "";
  /** Whether the state is complete: a snapshot has been seen to its end. */
  complete = false;

  #epoch = "";
  #known = new Map<RowKey, Known>();
  #alerts = new Map<string, { revision: number; alert: Alert | null }>();
  #metrics = new Map<string, Metrics>();
  #events: LiveEvent[] = [];
  /** The keys of what is gone, the oldest first. */
  #gone: RowKey[] = [];
  #staging: Staging | null = null;
  #pendingRows = new Map<RowKey, Row | null>();
  #pending = noChanges();

  /** Take one frame of the stream. */
  take(frame: Frame): void {
    const data = frame.data ? (JSON.parse(frame.data) as unknown) : {};
    if (frame.type === "hello" || frame.type === "reset") this.#staging = { rows: [], alerts: [], metrics: [] };
    else if (frame.type === "snapshot") this.#stage(data as RowSnapshot);
    else if (frame.type === "ready") this.#finish(frame.id, data as Ready);
    else this.#apply(frame, data as RowEvent);
    if (frame.id) this.position = frame.id;
  }

  /** Forget everything, as when somebody else signs in. */
  clear(): void {
    this.position = "";
    this.complete = false;
    this.#epoch = "";
    this.#staging = null;
    this.#empty();
  }

  /** Return what changed since the last call. */
  takeChanges(): Changes {
    const changes = this.#pending;
    for (const [key, row] of this.#pendingRows) {
      if (row === null) changes.gone.push(key);
      else changes.rows.push(row);
    }
    this.#pendingRows = new Map();
    this.#pending = noChanges();
    return changes;
  }

  /** Return everything, for a tab that begins. */
  everything(): Changes {
    const rows = [...this.#known.values()].flatMap(({ row }) => (row === null ? [] : [row]));
    const alerts = Object.fromEntries([...this.#alerts].flatMap(([key, { alert }]) => (alert ? [[key, alert]] : [])));
    return {
      ...noChanges(),
      reset: true,
      rows,
      alerts,
      metrics: Object.fromEntries(this.#metrics),
      events: [...this.#events],
    };
  }

  get size(): number {
    return this.#known.size;
  }

  #stage(part: RowSnapshot): void {
    this.#staging ??= { rows: [], alerts: [], metrics: [] };
    this.#staging.rows.push(...((part.rows ?? []) as Row[]));
    this.#staging.alerts.push(...(part.alerts ?? []));
    this.#staging.metrics.push(...(part.metrics ?? []));
  }

  #finish(id: string, ready: Ready): void {
    const staged = this.#staging ?? { rows: [], alerts: [], metrics: [] };
    this.#staging = null;
    const epoch = id.split(".")[0] ?? "";
    if (epoch !== this.#epoch) this.#empty();
    this.#epoch = epoch;
    const there = new Set(staged.rows.map(rowKey));
    for (const [key, known] of this.#known) {
      if (there.has(key) || known.revision > ready.revision) continue;
      if (known.row !== null) this.#pendingRows.set(key, null);
      this.#known.delete(key);
    }
    for (const row of staged.rows) this.#put(rowKey(row), row, row.resource_version ?? 0);
    this.#finishAlerts(staged.alerts, ready.revision);
    for (const metrics of staged.metrics) this.#putMetrics(metrics);
    this.complete = true;
  }

  #finishAlerts(staged: Alert[], revision: number): void {
    const raised = new Set(staged.map(alertKey));
    for (const [key, known] of this.#alerts) {
      if (!raised.has(key) && known.revision <= revision) this.#putAlert(key, null, revision);
    }
    for (const alert of staged) this.#putAlert(alertKey(alert), alert, revision);
  }

  #apply(frame: Frame, event: RowEvent): void {
    const [epoch = "", number = "0"] = frame.id.split(".");
    if (epoch !== this.#epoch) return;
    const revision = Number(number);
    const { data } = event;
    if (event.row !== null) this.#put(rowKey(event.row), event.row, revision);
    else if (frame.type.endsWith(".deleted") || frame.type.endsWith(".archived"))
      this.#put(`${data["kind"] as Kind}/${data["uid"] as string}`, null, revision);
    if (frame.type === "alert.raised") this.#raise(data, revision);
    else if (frame.type === "alert.cleared") this.#putAlert(alertKey(data as unknown as Alert), null, revision);
    else if (frame.type === "worker.metrics.updated") this.#putMetrics(data as unknown as Metrics);
    this.#list({
      id: frame.id,
      uid: frame.id,
      type: frame.type,
      time: event.time,
      kind: event.kind,
      name: event.name,
      namespace: event.namespace,
      data,
    });
  }

  #put(key: RowKey, row: Row | null, revision: number): void {
    const known = this.#known.get(key);
    if (known !== undefined && known.revision >= revision) return;
    const kept = row === null ? null : { ...row, resource_version: revision };
    this.#known.set(key, { revision, row: kept });
    this.#pendingRows.set(key, kept);
    if (kept === null) this.#bury(key);
  }

  #bury(key: RowKey): void {
    const uid = key.slice(key.indexOf("/") + 1);
    if (this.#metrics.delete(uid)) this.#pending.metrics[uid] = null;
    this.#gone.push(key);
    if (this.#gone.length <= MOST_TOMBSTONES) return;
    const oldest = this.#gone.shift();
    if (oldest !== undefined && this.#known.get(oldest)?.row === null) this.#known.delete(oldest);
  }

  #raise(data: Record<string, unknown>, revision: number): void {
    const alert = data as unknown as Alert;
    this.#putAlert(alertKey(alert), alert, revision);
  }

  #putAlert(key: string, alert: Alert | null, revision: number): void {
    const known = this.#alerts.get(key);
    if (known !== undefined && known.revision > revision) return;
    this.#alerts.set(key, { revision, alert });
    if (alert === null && this.#alerts.size > MOST_TOMBSTONES) this.#alerts.delete(key);
    this.#pending.alerts[key] = alert;
  }

  #putMetrics(metrics: Metrics): void {
    const known = this.#metrics.get(metrics.worker_id);
    if (known !== undefined && known.collected_at >= metrics.collected_at) return;
    this.#metrics.set(metrics.worker_id, metrics);
    this.#pending.metrics[metrics.worker_id] = metrics;
  }

  #list(event: LiveEvent): void {
    this.#events.push(event);
    if (this.#events.length > MOST_EVENTS * 2) this.#events = this.#events.slice(-MOST_EVENTS);
    this.#pending.events.push(event);
    if (this.#pending.events.length > MOST_EVENTS) this.#pending.events.shift();
  }

  #empty(): void {
    this.#known.clear();
    this.#gone = [];
    this.#alerts.clear();
    this.#metrics.clear();
    this.#events = [];
    this.#pendingRows = new Map();
    this.#pending = { ...noChanges(), reset: true };
  }
}
