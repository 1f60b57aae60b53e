/**
 * Light or dark: as the system says, unless somebody chose. The choice is this browser's own. The page's root always
 * carries what is shown, so that the tokens have one place; what is drawn and not styled reads `shown` to be drawn anew.
 */
type Shown = "light" | "dark";
type Choice = "system" | Shown;

const KEY = "lcm-theme";
const ORDER: readonly Choice[] = ["system", "light", "dark"];

/** Return what was chosen here before; nothing where a browser keeps nothing, as it may for a report opened from a file. */
function readChoice(): Choice {
  try {
    return ORDER.find((one) => one === localStorage.getItem(KEY)) ?? "system";
  } catch {
    return "system";
  }
}

class Theme {
  choice = $state<Choice>(readChoice());
  shown = $state<Shown>("light");
  readonly #dark = matchMedia("(prefers-color-scheme: dark)");

  constructor() {
    this.#dark.addEventListener("change", () => this.#show());
    this.#show();
  }

  /** Take the next of system, light and dark. */
  turn(): void {
    this.choice = ORDER[(ORDER.indexOf(this.choice) + 1) % ORDER.length] ?? "system";
    localStorage.setItem(KEY, this.choice);
    this.#show();
  }

  /** The root first: whoever is woken by `shown` reads the tokens. */
  #show(): void {
    const shown = this.choice === "system" ? (this.#dark.matches ? "dark" : "light") : this.choice;
    document.documentElement.dataset["theme"] = shown;
    this.shown = shown;
  }
}

export const theme = new Theme();
