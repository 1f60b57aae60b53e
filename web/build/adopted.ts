import type { Plugin } from "vite";

/**
 * xterm.js writes its colours into `<style>` elements and into `style` attributes. Our content security policy allows
 * neither, and xterm.js has no option for it. Built for us, it makes `adopted-style` elements (src/lib/console/adopted.ts)
 * and sets styles as properties, which the policy does not concern. The build stops if another version of xterm.js has
 * not exactly these places.
 */
const PLACES: readonly { find: RegExp; put: string; times: number }[] = [
  { find: /createElement\("style"\)/g, put: 'createElement("adopted-style")', times: 3 },
  {
    find: /(\w+)\.setAttribute\("style",`\$\{\1\.getAttribute\("style"\)\|\|""\}\$\{(\w+)\};`\)/g,
    put: '$1.style.cssText+=$2+";"',
    times: 1,
  },
];

export function adoptStyles(): Plugin {
  return {
    name: "adopt-styles",
    apply: "build",
    transform(code, id) {
      if (!id.includes("/@xterm/xterm/") || id.includes(".css")) return null;
      let adopted = code;
      for (const { find, put, times } of PLACES) {
        const found = code.match(find)?.length ?? 0;
        if (found !== times) this.error(`xterm.js has ${found} of ${find.source}, not ${times}: see build/adopted.ts`);
        adopted = adopted.replace(find, put);
      }
      return { code: adopted, map: null };
    },
  };
}
