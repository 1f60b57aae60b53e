/**
 * An element that is used like `<style>` but gives the document a constructed stylesheet, which is no inline style.
 * build/adopted.ts has xterm.js make these.
 */
class AdoptedStyle extends HTMLElement {
  #sheet = new CSSStyleSheet();

  override set textContent(text: string) {
    this.#sheet.replaceSync(text);
  }

  connectedCallback(): void {
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, this.#sheet];
  }

  disconnectedCallback(): void {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((sheet) => sheet !== this.#sheet);
  }
}

export function defineAdoptedStyle(): void {
  if (!customElements.get("adopted-style")) customElements.define("adopted-style", AdoptedStyle);
}
