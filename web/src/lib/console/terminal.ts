/** A serial console as a terminal. Imported when the first console is opened. */
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { defineAdoptedStyle } from "./adopted";

const SCROLLBACK = 5_000;
/** One palette for light and dark pages: a terminal is dark in both. */
const THEME = {
  background: "#101614",
  foreground: "#e5eae7",
  cursor: "#5fc2c9",
  cursorAccent: "#101614",
  selectionBackground: "#2f6f75",
  black: "#3a4441",
  red: "#f59b95",
  green: "#7fd09a",
  yellow: "#e9bd64",
  blue: "#8fbdee",
  magenta: "#d5a6e6",
  cyan: "#5fc2c9",
  white: "#e5eae7",
  brightBlack: "#8b938d",
};

export interface SerialOptions {
  readOnly: boolean;
  readAloud: boolean;
  type: (text: string) => void;
  leave: () => void;
  copy: (text: string) => void;
}

export class SerialTerminal {
  #terminal: Terminal;
  #fit = new FitAddon();
  #sizes: ResizeObserver;

  constructor(target: HTMLElement, { readOnly, readAloud, type, leave, copy }: SerialOptions) {
    defineAdoptedStyle();
    const style = getComputedStyle(document.documentElement);
    this.#terminal = new Terminal({
      fontFamily: style.getPropertyValue("--mono").trim(),
      fontSize: 14,
      theme: THEME,
      minimumContrastRatio: 4.5,
      scrollback: SCROLLBACK,
      cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
      disableStdin: readOnly,
      screenReaderMode: readAloud,
    });
    this.#terminal.loadAddon(this.#fit);
    this.#terminal.open(target);
    this.#terminal.onData(type);
    this.#terminal.attachCustomKeyEventHandler((event) => {
      if (!event.ctrlKey || !event.shiftKey) return true;
      const key = event.key.toLowerCase();
      if (key === "l" || key === "c") {
        event.preventDefault();
        if (event.type === "keydown") {
          if (key === "l") leave();
          else copy(this.#terminal.getSelection());
        }
        return false;
      }
      return key !== "v";
    });
    this.#sizes = new ResizeObserver(() => {
      if (target.clientWidth) this.#fit.fit();
    });
    this.#sizes.observe(target);
  }

  write(bytes: Uint8Array): void {
    this.#terminal.write(bytes);
  }

  /** Write a line of our own, between what the node says. */
  note(text: string): void {
    const { cursorX } = this.#terminal.buffer.active;
    this.#terminal.write(`${cursorX ? "\r\n" : ""}\x1b[2m── ${text} ──\x1b[0m\r\n`);
  }

  focus(): void {
    this.#terminal.focus();
  }

  paste(text: string): void {
    this.#terminal.paste(text);
    this.focus();
  }

  /** What is selected, or everything. */
  text(): string {
    const selected = this.#terminal.getSelection();
    if (selected) return selected;
    this.#terminal.selectAll();
    const all = this.#terminal.getSelection();
    this.#terminal.clearSelection();
    return all.trimEnd();
  }

  readAloud(on: boolean): void {
    this.#terminal.options.screenReaderMode = on;
  }

  dispose(): void {
    this.#sizes.disconnect();
    this.#terminal.dispose();
  }
}
