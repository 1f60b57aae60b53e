/** The words of the API, as types: made from its OpenAPI document by `tools/pages.py check`. */
import type { components } from "../../made/schema";

type Schemas = components["schemas"];

export type Role = Schemas["Role"];
export type Who = Schemas["Who"];
export type LabWorker = Schemas["LabWorker"];
export type LabletSession = Schemas["LabletSession"];
export type Console = Schemas["Console"];
export type LabGraph = Schemas["LabGraph"];
export type Explanation = Schemas["Explanation"];
export type SlotOffer = Schemas["SlotOffer"];
export type SlotOffers = Schemas["SlotOffers"];
export type CalendarView = Schemas["CalendarView"];
export type CalendarRow = Schemas["CalendarRow"];
export type PoolPacking = Schemas["PoolPacking"];
export type Booked = Schemas["Booked"];
export type Reservation = Schemas["Reservation"];
export type Invitation = Schemas["Invitation"];
export type ContinueFrom = Schemas["ContinueFrom"];
export type Artifact = Schemas["Artifact"];
export type CostTotal = Schemas["CostTotal"];
export type TokenInfo = Schemas["TokenInfo"];
export type TokenMade = Schemas["TokenMade"];
export type CostReport = Schemas["CostReport"];
export type CostLedger = Schemas["CostLedger"];
export type CostRow = Schemas["CostRow"];
export type CostGroup = Schemas["CostGroup"];
export type ClassCost = Schemas["ClassCost"];
export type BudgetLine = Schemas["BudgetLine"];
export type QuotaLine = Schemas["QuotaLine"];
export type QuotaView = Schemas["QuotaView"];
export type QuotaPage = Schemas["QuotaPage"];
export type QuotaRule = Schemas["QuotaRule"];
export type PoolChange = Schemas["PoolChange"];
export type PoolExplanation = Schemas["PoolExplanation"];
export type BatchAnswer = Schemas["BatchAnswer"];
export type BatchResult = Schemas["BatchResult"];
export type LabletDefinition = Schemas["LabletDefinition"];
export type LabWorkerPool = Schemas["LabWorkerPool"];
export type WorkerTemplate = Schemas["WorkerTemplate"];
export type TopologyReport = Schemas["TopologyReport"];
export type DefinitionTopology = Schemas["DefinitionTopology"];
export type ObservationReport = Schemas["ObservationReport"];
export type ResourceRequirements = Schemas["ResourceRequirements"];
export type BillingInterval = Schemas["BillingInterval"];
export type PlanJob = Schemas["PlanJob"];
export type PlanResult = Schemas["PlanResult"];
export type PlanVariant = Schemas["PlanVariant"];
export type Sample = Schemas["Sample"];
export type Problem = Schemas["Problem"];
export type EventLine = Schemas["EventLine"];
export type ShownSetting = Schemas["ShownSetting"];
export type SystemSettings = Schemas["SystemSettings"];
export type AuditRecord = Schemas["AuditRecord"];
export type AuditList = Schemas["AuditList"];
export type Sink = Schemas["ShownSink"];
export type DeadLetterList = Schemas["DeadLetterList"];
export type DeadLetterLine = Schemas["DeadLetterLine"];
export type ConsoleOutput = Schemas["ConsoleOutput"];
export type SignInWays = Schemas["SignInWays"];

export type WorkerRow = Schemas["WorkerRow"];
export type SessionRow = Schemas["SessionRow"];
export type PoolRow = Schemas["PoolRow"];
export type DefinitionRow = Schemas["DefinitionRow"];
export type ReservationRow = Schemas["ReservationRow"];
export type TemplateRow = Schemas["TemplateRow"];
export type Row = WorkerRow | SessionRow | PoolRow | DefinitionRow | ReservationRow | TemplateRow;
export type Alert = Schemas["Alert"];
export type Metrics = Schemas["WorkerMetrics"];
export type RowSnapshot = Schemas["RowSnapshot"];
export type Ready = Schemas["Ready"];

export interface RowsByKind {
  LabWorker: WorkerRow;
  LabletSession: SessionRow;
  LabWorkerPool: PoolRow;
  LabletDefinition: DefinitionRow;
  Reservation: ReservationRow;
  WorkerTemplate: TemplateRow;
}
export type Kind = keyof RowsByKind;

/** What is booked: for a class, or for one person. */
export type Booking = Reservation | LabletSession;

/** An event as the Events page lists it. */
export interface LiveEvent {
  id: string;
  /** The same as `id`: what a table tells its rows apart by. */
  uid: string;
  type: string;
  time: string;
  kind: string;
  name: string;
  namespace: string;
  data: Record<string, unknown>;
}

/** Who books, and has sessions and reservations of their own. */
export const BOOKERS: readonly Role[] = ["admin", "operator", "author", "instructor", "user"];
/** Who reads what is booked on the fleet, and books for classes. */
export const TEACHERS: readonly Role[] = ["admin", "operator", "author", "instructor"];
/** Who may publish labs. */
export const AUTHORS: readonly Role[] = ["admin", "operator", "author"];
export const STAFF: readonly Role[] = ["admin", "operator"];
export const ADMIN: readonly Role[] = ["admin"];

export const ENDED: ReadonlySet<string> = new Set(["COMPLETED", "FAILED", "TERMINATED", "EXPIRED"]);
export const ON_WORKER: ReadonlySet<string> = new Set(["INSTANTIATING", "RUNNING", "COLLECTING", "STOPPING"]);
