/** What to do about an alert whose message does not say it. Pure. */

const LOOK_AT_LABS = "Look at the labs on it. Draining it keeps new sessions away.";

const ADVICE: Record<string, string> = {
  HighCpu: LOOK_AT_LABS,
  HighMemory: LOOK_AT_LABS,
  HighDisk: LOOK_AT_LABS,
  WorkerFailed: "Correct what the message names, in the worker or in its template; a change is tried at once.",
  LicenceNotObtained: "Check the licence server, or free a seat there.",
  DrainDeadlineNear: "Tell the owners of the sessions, or drain it again with a later deadline.",
  PoolFailed: "Look at the pool's decisions and at its last error.",
};

export function adviceOf({ alert }: { alert: string }): string {
  return ADVICE[alert] ?? "";
}
