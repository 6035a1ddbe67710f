// The list of runs: which of them are drawn, by study, with a filter.

import * as address from "./address.js";
import { button, el } from "./dom.js";

const AT_FIRST = 8;

/** The ids of the runs that are drawn. */
export function chosen(runs) {
  const readable = runs.filter((run) => !run.problem).map((run) => run.id);
  const wanted = address.list("runs");
  if (wanted === null) return readable.slice(0, AT_FIRST);
  const known = new Set(readable);
  return wanted.filter((id) => known.has(id));
}

/** The list: its element, and a function that ticks what the address says. */
export function makeChooser(runs) {
  const filter = el("input", { id: "filter", type: "search", placeholder: "e.g. serial dat" });
  filter.value = address.get("filter");
  const items = runs.map((run) => item(run, runs));
  const count = el("span", { class: "note", id: "chosen-count" });
  const show = () => {
    const parts = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    runs.forEach((run, index) => {
      const text = `${run.label} ${run.study} ${run.id} ${run.model} ${run.task}`.toLowerCase();
      items[index].hidden = !parts.every((part) => text.includes(part));
    });
  };
  filter.addEventListener("input", show);
  address.onChange((changed) => {
    if (!changed.has("filter")) return;
    filter.value = address.get("filter");
    show();
  });
  filter.addEventListener("change", () => address.set({ filter: filter.value || null }, true));
  show();
  const listed = () =>
    runs.filter((run, index) => !items[index].hidden && !run.problem).map((run) => run.id);
  const all = button("all listed", "choose-all", () =>
    save(runs, new Set([...chosen(runs), ...listed()])),
  );
  const none = button("none", "choose-none", () => save(runs, new Set()));
  const element = el(
    "details",
    { id: "chooser", open: matchMedia("(min-width: 60rem)").matches },
    el("summary", {}, "Runs ", count),
    el("label", { class: "field" }, el("span", {}, "Filter"), filter),
    el("div", { class: "row" }, all, none),
    el("div", { class: "runs" }, ...byStudy(runs, items)),
  );
  const refresh = () => {
    const picked = new Set(chosen(runs));
    count.textContent = `${picked.size} of ${runs.length} drawn`;
    runs.forEach((run, index) => (items[index].firstElementChild.checked = picked.has(run.id)));
  };
  return { element, refresh };
}

function byStudy(runs, items) {
  const groups = new Map();
  runs.forEach((run, index) => {
    if (!groups.has(run.study)) groups.set(run.study, []);
    groups.get(run.study).push(items[index]);
  });
  return [...groups].map(([study, list]) =>
    el("fieldset", {}, el("legend", {}, study || "Runs"), ...list),
  );
}

function item(run, runs) {
  const box = el("input", {
    type: "checkbox",
    value: run.id,
    disabled: Boolean(run.problem),
    change: () => {
      const next = new Set(chosen(runs));
      if (box.checked) next.add(run.id);
      else next.delete(run.id);
      save(runs, next);
    },
  });
  const about = run.problem ?? [run.model, ...(run.methods ?? [])].join(", ");
  const absent = run.tested ? "no checkpoint" : "no checkpoint yet";
  const state = run.problem ? "cannot be read" : run.trained ? "" : absent;
  return el(
    "label",
    { class: "run", title: about },
    box,
    el("span", {}, run.label),
    state ? el("span", { class: "note" }, ` ${state}`) : null,
    run.problem ? el("span", { class: "problem" }, run.problem) : null,
  );
}

function save(runs, picked) {
  const ids = runs.filter((run) => picked.has(run.id)).map((run) => run.id);
  address.set({ runs: ids.join(",") });
}
