/** A node's screen by VNC. Imported when the first one is opened. */
import RFB from "@novnc/novnc";

const CONTROL = 0xffe3;
const SHIFT = 0xffe1;

/** What noVNC takes for a WebSocket: only the bytes of the line; what the server says to us beside them is not for it. */
class Channel {
  binaryType = "arraybuffer";
  protocol = "";
  readyState = "open";
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: ArrayBufferLike }) => void) | null = null;
  onerror: ((event: unknown) => void) | null = null;
  onclose: ((event: { code: number; reason: string }) => void) | null = null;
  send: (bytes: Uint8Array<ArrayBuffer>) => void;

  constructor(send: (bytes: Uint8Array<ArrayBuffer>) => void) {
    this.send = send;
  }

  close(): void {
    if (this.readyState === "closed") return;
    this.readyState = "closed";
    // As a WebSocket does, after the caller is done: noVNC sets its timer for the end only then, and would never stop it.
    queueMicrotask(() => this.onclose?.({ code: 1000, reason: "" }));
  }
}

export interface ScreenOptions {
  readOnly: boolean;
  send: (bytes: Uint8Array<ArrayBuffer>) => void;
  leave: () => void;
  failed: (why: string) => void;
}

export class VncScreen {
  #channel: Channel;
  #rfb: RFB;
  #over = new AbortController();

  constructor(target: HTMLElement, { readOnly, send, leave, failed }: ScreenOptions) {
    this.#channel = new Channel(send);
    this.#rfb = new RFB(target, this.#channel, { shared: true });
    this.#rfb.viewOnly = readOnly;
    this.#rfb.scaleViewport = true;
    this.#rfb.background = "#101614";
    this.#rfb.addEventListener("disconnect", (event) => {
      const { clean } = (event as CustomEvent<{ clean: boolean }>).detail;
      if (!this.#over.signal.aborted && !clean) failed("The node's screen sent something that cannot be shown.");
    });
    this.#rfb.addEventListener("credentialsrequired", () => {
      failed("The node asks for a VNC password, which cannot be given here.");
    });
    // The place outlives the screen: each connection that heals would leave another listener there.
    const { signal } = this.#over;
    target.addEventListener("keydown", (event) => this.#watchKeys(event, leave), { capture: true, signal });
  }

  take(bytes: Uint8Array): void {
    this.#channel.onmessage?.({ data: bytes.buffer });
  }

  focus(): void {
    this.#rfb.focus();
  }

  sendCtrlAltDel(): void {
    this.#rfb.sendCtrlAltDel();
    this.focus();
  }

  /** Put a text into the clipboard of the node. */
  paste(text: string): void {
    this.#rfb.clipboardPasteFrom(text);
    this.focus();
  }

  dispose(): void {
    this.#over.abort();
    this.#rfb.disconnect();
  }

  #watchKeys(event: KeyboardEvent, leave: () => void): void {
    if (!event.ctrlKey || !event.shiftKey || event.key.toLowerCase() !== "l") return;
    event.preventDefault();
    event.stopPropagation();
    // The node saw them go down, and does not see them come up.
    this.#rfb.sendKey(CONTROL, "ControlLeft", false);
    this.#rfb.sendKey(SHIFT, "ShiftLeft", false);
    leave();
  }
}
