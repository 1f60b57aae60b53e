/** Reads server-sent events from chunks of text. Comments, which are heartbeats, are left out. */

export interface Frame {
  id: string;
  type: string;
  data: string;
}

export class FrameReader {
  #rest = "";

  /** Take a chunk and return the frames that are complete with it. */
  take(chunk: string): Frame[] {
    const parts = (this.#rest + chunk).split("\n\n");
    this.#rest = parts.pop() ?? "";
    return parts.map(readFrame).filter((frame) => frame !== null);
  }
}

function readFrame(text: string): Frame | null {
  const frame: Frame = { id: "", type: "", data: "" };
  for (const line of text.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (line.startsWith("id")) frame.id = value;
    else if (line.startsWith("event")) frame.type = value;
    else if (line.startsWith("data")) frame.data = frame.data ? `${frame.data}\n${value}` : value;
  }
  return frame.type ? frame : null;
}
