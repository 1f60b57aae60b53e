import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

/** Builds the style and the script that `lcm.sim.plan.page` puts into a plan's report. */
export default defineConfig({
  plugins: [svelte()],
  define: { "process.env.NODE_ENV": '"production"' },
  build: {
    target: "es2022",
    reportCompressedSize: false,
    emptyOutDir: true,
    copyPublicDir: false,
    lib: {
      entry: "src/report/main.ts",
      name: "report",
      formats: ["iife"],
      fileName: () => "report.js",
      cssFileName: "report",
    },
  },
});
