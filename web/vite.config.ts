import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { brotliCompress, constants, gzipSync } from "node:zlib";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";
import { adoptStyles } from "./build/adopted";

/** What a browser must load before the first page is usable: the entry and all that it imports at once, gzipped. */
const FIRST_PAGE_BYTES = 150_000;
const SMALL = 600;
/** The best there is, 11, takes three times as long and saves 2 % more. */
const BROTLI = { params: { [constants.BROTLI_PARAM_QUALITY]: 10 } };
/** Packages that come as one file, all of which is used: to look for what could be left out takes seconds. */
const WHOLE = /node_modules\/(cytoscape|@xterm\/xterm)\/.*\.m?js$/;

/** Write each file compressed beside itself, and stop the build when the first page has grown too large. */
function served(): Plugin {
  let folder = "";
  let first: string[] = [];
  return {
    name: "served",
    apply: "build",
    configResolved(config) {
      folder = config.build.outDir;
    },
    generateBundle(_, bundle) {
      const seen = new Set<string>();
      const follow = (name: string): void => {
        const chunk = bundle[name];
        if (seen.has(name) || chunk?.type !== "chunk") return;
        seen.add(name);
        chunk.imports.forEach(follow);
      };
      for (const chunk of Object.values(bundle)) if (chunk.type === "chunk" && chunk.isEntry) follow(chunk.fileName);
      first = [...seen];
    },
    async closeBundle() {
      const sizes = new Map<string, number>();
      const packing: Promise<void>[] = [];
      for (const path of filesBelow(folder)) {
        const content = readFileSync(path);
        const packed = gzipSync(content, { level: 9 });
        sizes.set(path, packed.length);
        if (content.length < SMALL) continue;
        writeFileSync(`${path}.gz`, packed);
        packing.push(promisify(brotliCompress)(content, BROTLI).then((best) => writeFileSync(`${path}.br`, best)));
      }
      await Promise.all(packing);
      const total = first.reduce((sum, name) => sum + (sizes.get(join(folder, name)) ?? 0), 0);
      writeFileSync(
        join(folder, "sizes.txt"),
        `${first.map((name) => `${name} ${sizes.get(join(folder, name))}`).join("\n")}\ntotal ${total}\n`,
      );
      if (total > FIRST_PAGE_BYTES)
        throw new Error(`the first page's script has ${total} bytes gzipped; it may have ${FIRST_PAGE_BYTES}`);
    },
  };
}

function keepWhole(): Plugin {
  return {
    name: "keep-whole",
    apply: "build",
    transform: (code, id) => (WHOLE.test(id) ? { code, map: null, moduleSideEffects: "no-treeshake" } : null),
  };
}

function filesBelow(folder: string): string[] {
  return readdirSync(folder)
    .map((name) => join(folder, name))
    .flatMap((path) => (statSync(path).isDirectory() ? filesBelow(path) : [path]));
}

export default defineConfig({
  plugins: [svelte(), adoptStyles(), keepWhole(), served()],
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    emptyOutDir: true,
    chunkSizeWarningLimit: 1000,
  },
  worker: { format: "es" },
  server: { proxy: { "/api": { target: "http://127.0.0.1:8080", ws: true }, "/sign-in": "http://127.0.0.1:8080" } },
});
