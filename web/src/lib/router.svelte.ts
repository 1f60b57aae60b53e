/** The address in this tab: which page it names, with what, and how to go elsewhere without loading anything anew. */
import { me } from "./me.svelte";
import { addressOf } from "./paths";

class Router {
  path = $state(location.pathname);
  search = $state(location.search);

  constructor() {
    addEventListener("popstate", () => this.#read());
    addEventListener("click", (event) => this.#click(event));
  }

  get query(): URLSearchParams {
    return new URLSearchParams(this.search);
  }

  /** Go to an address of ours. */
  go(address: string, replace = false): void {
    history[replace ? "replaceState" : "pushState"](null, "", address);
    this.#read();
    if (!replace) scrollTo(0, 0);
  }

  /** Set parameters of the present address, which keeps its place in the history; "" removes one. */
  set(parameters: Record<string, string>): void {
    const query = this.query;
    for (const [name, value] of Object.entries(parameters)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const text = query.toString();
    this.go(text ? `${this.path}?${text}` : this.path, true);
  }

  #read(): void {
    this.path = location.pathname;
    this.search = location.search;
  }

  #click(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const link = (event.target as Element | null)?.closest("a");
    if (!link || link.origin !== location.origin || link.target || link.hasAttribute("download")) return;
    if (link.pathname.startsWith("/api/") || link.pathname === "/sign-in" || link.hash) return;
    event.preventDefault();
    this.go(link.pathname + link.search);
  }
}

export const router = new Router();

/** The address of an object's page for who is signed in; null for kinds that have none, or none for them. */
export function pathOf(kind: string, name: string, namespace = "default"): string | null {
  return addressOf(me.role, kind, name, namespace);
}
