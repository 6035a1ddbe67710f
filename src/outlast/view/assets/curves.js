// Accuracy by length and learning curves: mean and spread over seeds, or single seeds.

import * as address from "./address.js";
import { noRun, seedProblem, sequenceProblem } from "./catalogue.js";
import { chosen, makeChooser } from "./chooser.js";
import { get, paths } from "./data.js";
import { button, check, choice, el, firstOf, missingSeeds, readSeeds } from "./dom.js";
import { accuracyFigure, learningFigure } from "./figures.js";
import { looks } from "./theme.js";
import { valuesTable } from "./values.js";

const OWN = ["runs", "hide", "seeds", "each", "part", "variant", "learning", "theme"];
let home, list, latest = 0;
let answers = null; // by run, once they are read

/** Build the view into its section. */
export function open(section, catalogue) {
  home = section;
  list = makeChooser(catalogue.runs);
  home.append(list.element, el("div", { class: "content", tabindex: -1 }));
  address.onChange((changed) => {
    if (address.get("tab", "curves") !== "curves") return;
    if (changed.has("runs") || changed.has("tab")) load(catalogue);
    else if (answers && OWN.some((name) => changed.has(name))) draw(catalogue);
  });
  if (address.get("tab", "curves") === "curves") load(catalogue);
}

/** Read the chosen runs, and draw them. */
async function load(catalogue) {
  const turn = ++latest; // a later call overtakes an earlier one that still waits for data
  const ids = chosen(catalogue.runs);
  list.refresh();
  const settled = await Promise.allSettled(ids.map((id) => get(paths.run(id))));
  if (turn !== latest) return;
  answers = new Map(ids.map((id, index) => [id, settled[index]]));
  draw(catalogue);
}

function draw(catalogue) {
  const runs = catalogue.runs;
  const drawn = [];
  const known = new Set(runs.map((run) => run.id));
  const problems = (address.list("runs") ?? []).filter((id) => !known.has(id)).map(noRun);
  const places = [...answers.keys()].map((id) => runs.findIndex((run) => run.id === id));
  const styles = looks(places);
  [...answers.values()].forEach((answer, index) => {
    const run = runs[places[index]];
    if (answer.status === "rejected") problems.push(`${run.label}: ${answer.reason.message}`);
    else drawn.push({ ...run, ...answer.value, look: styles[index] });
  });
  const text = address.get("seeds");
  const seeds = readSeeds(text);
  if (!seeds) problems.push(`seeds=${text}: expected seeds such as 0,2-4. All seeds are drawn.`);
  const hidden = new Set(address.list("hide") ?? []);
  const visible = drawn.filter((run) => !hidden.has(run.id));
  const nobody = nobodyWords(drawn, visible, seeds, text);
  if (!nobody) problems.push(...absent(visible, text));
  const focus = document.activeElement?.id;
  const content = home.lastElementChild;
  content.replaceChildren(controls(drawn), legend(drawn), notes(drawn, problems));
  const shade = 0.14 * Math.min(1, Math.max(0.3, 8 / visible.length)); // of bands: many overlap
  const shown = visible.map((run) => ({ ...run, shade }));
  const options = {
    seeds: seeds ?? (() => true),
    nobody,
    leads: (run, name) =>
      !seedProblem(catalogue, run, run.seeds[0]) && !sequenceProblem(catalogue, run, name),
    each: address.get("each") === "1",
    part: partOf(drawn),
    variant: address.get("variant"),
    learning: learningOf(drawn),
  };
  content.append(figure("accuracy", "By length", shown, options, accuracyFigure));
  content.append(figure("learning", "Learning curves", shown, options, learningFigure));
  if (focus) document.getElementById(focus)?.focus();
}

/** That all runs are hidden, or none has the seeds that are asked for; empty if something is shown. */
function nobodyWords(drawn, runs, seeds, text) {
  if (drawn.length && !runs.length) return "All runs are hidden. The buttons above show them.";
  if (!seeds || !runs.length || runs.some((run) => run.seeds.some(seeds))) return "";
  return `None of these runs has ${seedWords(text.trim())}.`;
}

/** Which of the seeds that are asked for some runs do not have. */
function absent(runs, text) {
  const labels = new Map();
  for (const run of runs) {
    const missing = missingSeeds(text, run.seeds);
    if (missing) labels.set(missing, [...(labels.get(missing) ?? []), run.label]);
  }
  return [...labels].map(([missing, names]) =>
    names.length === runs.length
      ? `None of these runs has ${seedWords(missing)}.`
      : `No ${seedWords(missing)}: ${firstOf(names)}.`,
  );
}

/** Seeds written as 0,2-4, in a sentence. */
function seedWords(text) {
  return `${/\D/.test(text) ? "seeds" : "seed"} ${text}`;
}

function figure(id, title, runs, options, make) {
  const place = el("div", { class: "plot", id });
  const tapped = el("p", { id: `${id}-tapped`, "aria-live": "polite" });
  const caption = el("p", { class: "note", id: `${id}-caption` });
  const block = el("figure", {}, el("h2", {}, title), place, tapped, caption);
  queueMicrotask(() => {
    if (!place.isConnected) return;
    const { words, traces, table } = make(place, runs, options, tapped);
    caption.textContent = words;
    if (traces) block.append(valuesTable(id, traces, table));
  });
  return block;
}

function unique(values) {
  return [...new Set(values)];
}

function partOf(runs) {
  const parts = partsOf(runs);
  const wanted = address.get("part");
  return parts.includes(wanted) ? wanted : (parts[0] ?? "joint");
}

function partsOf(runs) {
  const exact = unique(runs.flatMap((run) => run.rows.flatMap((row) => Object.keys(row.exact ?? {}))));
  const bits = unique(runs.flatMap((run) => run.rows.flatMap((row) => Object.keys(row.bits ?? {}))));
  return [...exact, ...bits.map((part) => `bits: ${part}`)];
}

function learningsOf(runs) {
  const losses = unique(runs.flatMap((run) => Object.keys(run.losses)));
  const probes = unique(runs.flatMap((run) => Object.keys(run.probes)));
  return [
    ...losses.map((part) => [`loss:${part}`, `loss: ${part}`]),
    ...probes.map((times) => [`probe:${times}`, `joint accuracy at ${times} ×`]),
  ];
}

function learningOf(runs) {
  const known = learningsOf(runs).map(([value]) => value);
  const wanted = address.get("learning");
  return known.includes(wanted) ? wanted : (known[0] ?? "");
}

function controls(runs) {
  const variants = unique(runs.flatMap((run) => run.rows.map((row) => row.variant ?? "")));
  const seeds = el("input", {
    id: "seeds",
    type: "text",
    placeholder: "all, or 0,2-4",
    change: () => address.set({ seeds: seeds.value || null }),
  });
  seeds.value = address.get("seeds");
  const parts = partsOf(runs).map((part) => [part, part]);
  const row = el("div", { class: "controls" });
  if (parts.length)
    row.append(choice("Part", "part", parts, partOf(runs), (part) => address.set({ part })));
  if (variants.length > 1) {
    const options = variants.map((name) => [name, name || "as trained"]);
    const change = (variant) => address.set({ variant: variant || null });
    row.append(choice("Version of the task", "variant", options, address.get("variant"), change));
  }
  const learning = learningsOf(runs);
  if (learning.length) {
    const change = (value) => address.set({ learning: value });
    row.append(choice("Learning curve", "learning-of", learning, learningOf(runs), change));
  }
  row.append(el("label", { class: "field" }, el("span", {}, "Seeds"), seeds));
  const each = address.get("each") === "1";
  row.append(check("single seeds", "each", each, (on) => address.set({ each: on ? 1 : null })));
  return row;
}

function legend(runs) {
  const hidden = new Set(address.list("hide") ?? []);
  const entries = runs.map((run) => {
    const toggle = () => {
      const next = new Set(hidden);
      if (!next.delete(run.id)) next.add(run.id);
      address.set({ hide: next.size ? [...next].join(",") : null });
    };
    const swatch = el("span", { class: `swatch ${run.look.dash}`, "aria-hidden": "true" });
    swatch.style.color = run.look.colour;
    const pressed = String(!hidden.has(run.id));
    const more = { "aria-pressed": pressed, title: "Show or hide this run" };
    const entry = button("", `legend-${run.id}`, toggle, more);
    entry.append(swatch, run.label);
    return el("li", {}, entry);
  });
  return el("ul", { class: "legend", "aria-label": "Runs that are drawn" }, ...entries);
}

function notes(runs, problems) {
  const list = runs.filter((run) => run.status).map((run) => `${run.label}: ${run.status}`);
  const all = [...problems.map((words) => ["problem", words]), ...list.map((w) => ["note", w])];
  if (!runs.length && !problems.length) all.push(["note", "No run is chosen."]);
  const more = all.length > 6 ? { tabindex: 0, role: "region", "aria-label": "Notes" } : {};
  return el("div", { class: "notes", ...more }, ...all.map(([kind, words]) => el("p", { class: kind }, words)));
}
