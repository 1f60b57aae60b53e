/** The script of a plan's report, which is one file: the result is in it as JSON, and a text to be replaced by this. */
import { mount } from "svelte";
import "../app.css";
import "../lib/theme.svelte";
import type { PlanResult } from "../lib/model";
import Page from "./Page.svelte";

const target = document.getElementById("report");
const text = document.getElementById("plan")?.textContent;
if (target && text) {
  const result = JSON.parse(text) as PlanResult;
  target.replaceChildren();
  mount(Page, { target, props: { result } });
}
