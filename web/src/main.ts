import { mount } from "svelte";
import "./app.css";
import App from "./App.svelte";
import { reloadIfOutdated } from "./lib/build";
import "./lib/theme.svelte";

const target = document.getElementById("app");
if (target) mount(App, { target });

// Whoever wanted to load something shows that it failed, and a way to try again.
addEventListener("vite:preloadError", () => void reloadIfOutdated());
