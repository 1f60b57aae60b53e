/** The SharedWorker: one hub for all tabs of this browser. */
import type { ToHub } from "./hub";
import { Hub } from "./hub";
import { browser } from "./surroundings";

const hub = new Hub(browser);

addEventListener("connect", (event) => {
  const port = (event as MessageEvent).ports[0];
  if (!port) return;
  port.onmessage = (message: MessageEvent<ToHub>) => hub.receive(port, message.data);
});
