/**
 * The time as pages show it: it moves once a second, and only while somebody looks. It is the server's, by which
 * sessions begin and end: the clock of whoever looks may be wrong.
 */
class Clock {
  /** By how many milliseconds the server's clock is ahead of this machine's. */
  ahead = 0;
  now = $state(Date.now());

  constructor() {
    setInterval(() => {
      if (!document.hidden) this.now = this.read();
    }, 1000);
    document.addEventListener("visibilitychange", () => (this.now = this.read()));
  }

  /** Return the time at this moment. */
  read(): number {
    return Date.now() + this.ahead;
  }
}

export const clock = new Clock();
