/** How figures and moments of a plan are said. Pure. */

/** Say hours or dollars; what is not known is a dash. */
export function sayFigure(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString([], { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}

/** Say a moment in the zone of the timetable. */
export function sayInZone(moment: string, zone: string): string {
  const parts = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hour12: false } as const;
  return new Date(moment).toLocaleString([], { weekday: "short", ...parts, timeZone: zone });
}

/** Say how late a start was; null for one that never was. */
export function sayLate(seconds: number | null): string {
  if (seconds === null) return "never ran";
  return seconds < 120 ? `${Math.round(seconds)} s late` : `${Math.floor(seconds / 60)} min late`;
}
