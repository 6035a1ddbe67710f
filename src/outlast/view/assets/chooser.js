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

/** The list, as an element. */
export function chooser(runs) {
  const picked = new Set(chosen(runs));
  const filter = el("input", { id: "filter", type: "search", placeholder: "e.g. serial dat" });
  filter.value = address.get("filter");
  const items = runs.map((run) => item(run, picked, runs));
  const groups = byStudy(runs, items);
  const count = el("span", { class: "note", id: "chosen-count" }, words(picked.size, runs.length));
  const show = () => {
    const parts = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    runs.forEach((run, index) => {
      const text = `${run.label} ${run.study} ${run.id} ${run.model} ${run.task}`.toLowerCase();
      items[index].hidden = !parts.every((part) => text.includes(part));
    });
  };
  filter.addEventListener("input", show);
  filter.addEventListener("change", () => address.set({ filter: filter.value || null }, true));
  show();
  const visible = () =>
    runs.filter((run, index) => !items[index].hidden && !run.problem).map((run) => run.id);
  const all = button("all listed", "choose-all", () =>
    save(runs, new Set([...picked, ...visible()])),
  );
  const none = button("none", "choose-none", () => save(runs, new Set()));
  const open = matchMedia("(min-width: 60rem)").matches;
  return el(
    "details",
    { id: "chooser", open },
    el("summary", {}, "Runs ", count),
    el("label", { class: "field" }, el("span", {}, "Filter"), filter),
    el("div", { class: "row" }, all, none),
    el("div", { class: "runs" }, ...groups),
  );
}

function words(picked, all) {
  return `${picked} of ${all} drawn`;
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

function item(run, picked, runs) {
  const box = el("input", {
    type: "checkbox",
    value: run.id,
    disabled: Boolean(run.problem),
    change: () => {
      const next = new Set(picked);
      if (box.checked) next.add(run.id);
      else next.delete(run.id);
      save(runs, next);
    },
  });
  box.checked = picked.has(run.id);
  const about = run.problem ?? [run.model, ...(run.methods ?? [])].join(", ");
  const state = run.problem ? "cannot be read" : run.trained ? "" : "no checkpoint yet";
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
