/**
 * Whether the server has another build of these pages than the one that runs here. A page that was opened before an
 * update asks for files that are gone: the new page has the new names.
 */
const RELOADED = "reloaded-at";
const RELOAD_MS = 60_000;
const ENTRY = /<script type="module"[^>]* src="([^"]+)"/;

export interface BuildPlace {
  /** The address of the script with which this page began. */
  entry: string;
  /** Reads the page as the server has it now. */
  read: () => Promise<string>;
  /** Outlives a reload. */
  kept: Pick<Storage, "getItem" | "setItem">;
  now: () => number;
  reload: () => void;
}

/** Return whether the server names another first script than this page's; false if it does not answer. */
export async function isOutdated({ entry, read }: BuildPlace = here()): Promise<boolean> {
  try {
    const named = ENTRY.exec(await read())?.[1];
    return named !== undefined && named !== entry;
  } catch {
    return false;
  }
}

/** Load the server's build if it is another one: once a minute at most, as servers of two builds may take turns. */
export async function reloadIfOutdated(place: BuildPlace = here()): Promise<void> {
  if (place.now() - Number(place.kept.getItem(RELOADED)) < RELOAD_MS || !(await isOutdated(place))) return;
  place.kept.setItem(RELOADED, String(place.now()));
  place.reload();
}

function here(): BuildPlace {
  return {
    entry: document.querySelector('script[type="module"][src]')?.getAttribute("src") ?? "",
    read: async () => {
      const answer = await fetch("/", { cache: "no-store", headers: { accept: "text/html" } });
      return answer.ok ? answer.text() : "";
    },
    kept: sessionStorage,
    now: () => Date.now(),
    reload: () => location.reload(),
  };
}
