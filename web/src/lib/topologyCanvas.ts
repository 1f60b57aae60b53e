/** Draws a topology with Cytoscape, in the colours of the page. Imported when the first one is shown. */
import cytoscape from "cytoscape";
import type { TopologyLink, TopologyNode } from "./topology";
import { sayNodeState, spread } from "./topology";

/** Cytoscape adds a `<style>` of one rule, which our policy forbids, unless there is something with this id. The rule is in Topology.svelte. */
const STYLE_ID = "__________cytoscape_stylesheet";
const PADDING = 24;
const WIDEST_ZOOM = 1.25;
const STEP = 1.35;

export class TopologyCanvas {
  #graph: cytoscape.Core;
  #shape = "";

  constructor(target: HTMLElement, choose: (id: string) => void) {
    if (!document.getElementById(STYLE_ID)) {
      const place = document.createElement("template");
      place.id = STYLE_ID;
      document.head.append(place);
    }
    this.#graph = cytoscape({
      container: target,
      autoungrabify: true,
      boxSelectionEnabled: false,
      userZoomingEnabled: false,
      userPanningEnabled: false,
      maxZoom: 4,
      style: [],
    });
    this.#graph.on("tap", "node", (event) => choose(event.target.id() as string));
    this.#graph.on("mouseover", "node", () => target.classList.add("pointing"));
    this.#graph.on("mouseout", "node", () => target.classList.remove("pointing"));
  }

  /** Show these nodes and links. Only what changed is drawn anew: a state that moves leaves the picture in its place. */
  show(nodes: readonly TopologyNode[], links: readonly TopologyLink[], chosen: string | null): void {
    const shape = JSON.stringify([nodes.map(({ id, x, y }) => [id, x, y]), links.map(({ from, to }) => [from, to])]);
    if (shape !== this.#shape) this.#build(nodes, links);
    this.#shape = shape;
    this.#graph.batch(() => {
      for (const { id, label, definition, state } of nodes) {
        const [word, tone] = state ? sayNodeState(state) : [definition, "quiet"];
        const lines = [cut(label, 20), cut(word, 20)];
        const width = Math.max(96, 18 + 8 * Math.max(...lines.map((line) => line.length)));
        this.#graph
          .getElementById(id)
          .data({ text: lines.join("\n"), tone, width, chosen: id === chosen ? "yes" : "no" });
      }
    });
  }

  /** Take the colours of the page anew. */
  paint(): void {
    this.#graph.style(makeStyle());
  }

  /** Take the size of the place anew, and show everything. */
  fit(): void {
    this.#graph.resize();
    this.#graph.maxZoom(WIDEST_ZOOM);
    this.#graph.fit(undefined, PADDING);
    this.#graph.maxZoom(4);
    this.#graph.userPanningEnabled(false);
  }

  /** Show it larger or smaller; what does not fit can then be dragged. */
  zoom(larger: boolean): void {
    const { width, height } = this.#graph.container()?.getBoundingClientRect() ?? { width: 0, height: 0 };
    const level = this.#graph.zoom() * (larger ? STEP : 1 / STEP);
    this.#graph.zoom({ level, renderedPosition: { x: width / 2, y: height / 2 } });
    this.#graph.userPanningEnabled(true);
  }

  destroy(): void {
    this.#graph.destroy();
  }

  #build(nodes: readonly TopologyNode[], links: readonly TopologyLink[]): void {
    const places = spread(nodes);
    this.#graph.elements().remove();
    this.#graph.add(
      nodes.map(({ id }): cytoscape.ElementDefinition => {
        const position = places?.get(id);
        return {
          group: "nodes",
          data: { id, text: "", tone: "quiet", width: 96, chosen: "no" },
          ...(position && { position }),
        };
      }),
    );
    const known = new Set(nodes.map(({ id }) => id));
    this.#graph.add(
      links
        .filter(({ from, to }) => known.has(from) && known.has(to))
        .map(({ from, to }) => ({ group: "edges" as const, data: { source: from, target: to } })),
    );
    if (!places)
      this.#graph
        .layout({
          name: "cose",
          animate: false,
          randomize: false,
          nodeDimensionsIncludeLabels: true,
          idealEdgeLength: () => 90,
        } as cytoscape.LayoutOptions)
        .run();
    this.fit();
  }
}

function cut(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function makeStyle(): cytoscape.StylesheetJson {
  const tokens = getComputedStyle(document.documentElement);
  const token = (name: string): string => tokens.getPropertyValue(name).trim();
  const tones = ["good", "busy", "warn", "bad", "quiet"].map((tone) => ({
    selector: `node[tone = "${tone}"]`,
    style: {
      "background-color": token(`--${tone}-soft`),
      "border-color": token(`--${tone}`),
      color: token(`--${tone}`),
    },
  }));
  return [
    {
      selector: "node",
      style: {
        shape: "round-rectangle",
        width: "data(width)",
        height: 46,
        label: "data(text)",
        "text-wrap": "wrap",
        "text-valign": "center",
        "line-height": 1.25,
        "font-family": token("--font"),
        "font-size": 13,
        "font-weight": 600,
        "border-width": 1.5,
      },
    },
    ...tones,
    { selector: 'node[chosen = "yes"]', style: { "border-width": 4, "border-color": token("--accent") } },
    {
      selector: "edge",
      style: { width: 2, "line-color": token("--line-strong"), "curve-style": "bezier" },
    },
    { selector: "core", style: { "active-bg-opacity": 0 } as never },
  ] as cytoscape.StylesheetJson;
}
