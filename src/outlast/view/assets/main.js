// The page: its views, its colours, and what all views share.

import * as address from "./address.js";
import * as anatomy from "./anatomy.js";
import * as curves from "./curves.js";
import { get, paths } from "./data.js";
import { el } from "./dom.js";
import * as sequence from "./sequence.js";
import { apply, onSystemChange } from "./theme.js";

const VIEWS = { curves: "Curves", sequence: "Sequence", anatomy: "Failure anatomy" };

function showTab() {
  const current = VIEWS[address.get("tab")] ? address.get("tab") : "curves";
  const links = Object.entries(VIEWS).map(([name, words]) => {
    const open = (event) => {
      event.preventDefault();
      address.set({ tab: name });
      document.getElementById(`tab-${name}`).focus();
    };
    const here = name === current ? "page" : null;
    return el("a", { href: `#tab=${name}`, id: `tab-${name}`, "aria-current": here, click: open }, words);
  });
  document.getElementById("tabs").replaceChildren(...links);
  for (const name of Object.keys(VIEWS)) document.getElementById(name).hidden = name !== current;
}

function showTheme() {
  apply(address.get("theme"));
  document.getElementById("theme").value = address.get("theme");
}

/** A message above all views. */
function say(words) {
  const place = document.getElementById("message");
  place.textContent = words;
  place.hidden = !words;
}

async function start() {
  document.getElementById("starting").hidden = true;
  showTheme();
  showTab();
  // first in line, so that views find their section visible and the colours set
  address.onChange((changed) => {
    if (changed.has("theme")) showTheme();
    if (changed.has("tab")) showTab();
  });
  onSystemChange(() => address.announce("theme"));
  document.getElementById("theme").addEventListener("change", (event) => {
    address.set({ theme: event.target.value || null });
  });
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    const content = document.querySelector("#curves:not([hidden]) > .content"); // past the list of runs
    (content ?? document.getElementById("main-content")).focus();
  });
  try {
    const catalogue = await get(paths.runs());
    const names = new Set(catalogue.runs.map((run) => run.study).filter(Boolean));
    if (names.size === 1) document.title = `${[...names][0]} – Outlast`;
    const views = [curves, sequence, anatomy];
    Object.keys(VIEWS).forEach((name, index) =>
      views[index].open(document.getElementById(name), catalogue),
    );
  } catch (error) {
    say(error.message);
  }
}

start();
