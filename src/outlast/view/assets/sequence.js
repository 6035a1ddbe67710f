// One sequence, token by token: what one run, or two side by side, make of it.

import * as address from "./address.js";
import {
  bundledSequences,
  findRun,
  runOptions,
  seedOf,
  seedProblem,
  seedsOf,
  sequenceProblem,
} from "./catalogue.js";
import { get, onNewerCheckpoint, paths } from "./data.js";
import { button, choice, el } from "./dom.js";
import { Panel } from "./panel.js";
import { TokenStrip } from "./tokens.js";

const DRAWN = /^draw-(\d+)-(\d+)(?:-of-(\d+))?$/;
const SEQUENCES = 256;
// keys and the tokens that they move by
const STEPS = { ArrowLeft: -1, ArrowRight: 1 };
const FAR = { PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
const LOADED = ["a", "aseed", "b", "bseed", "seq", "tab"];
let home, catalogue, latest = 0;
let strip = null;
let panels = [];
let shown = null; // what `show` has drawn
let count = 0; // of tokens

/** Build the view into its section. */
export function open(section, data) {
  home = section;
  catalogue = data;
  address.onChange((changed) => {
    if (!isOpen()) return;
    if (LOADED.some((name) => changed.has(name))) draw();
    else if (changed.has("theme") && shown) show(...shown);
    else if (changed.has("at")) step();
    if (changed.has("colour") || changed.has("map")) panels.forEach((panel) => panel.restyle());
  });
  onNewerCheckpoint(() => {
    if (isOpen()) draw();
  });
  addEventListener("keydown", onKey);
  if (isOpen()) draw();
}

function isOpen() {
  return address.get("tab") === "sequence";
}

/** The run and the seed of side "a" or "b", or its `problem`; null if there is no second run. */
function side(name) {
  if (name === "b" && !address.get("b")) return null;
  const { run, problem } = findRun(catalogue, name);
  return run ? { run, seed: seedOf(run, `${name}seed`), side: name } : { problem, side: name };
}

function sequenceName(run) {
  const name = address.get("seq");
  if (name) return name;
  const computed = catalogue.live ? null : bundledSequences(catalogue, run)[0];
  return computed ?? `draw-${run.length}-0`;
}

async function draw() {
  const turn = ++latest;
  const first = side("a");
  const second = side("b");
  if (first.problem) {
    shown = strip = null;
    panels = [];
    const words = el("p", { class: "problem", role: "alert" }, first.problem);
    home.replaceChildren(runControls(), words);
    return document.getElementById("run-a").focus();
  }
  const name = sequenceName(first.run);
  const status = el("p", { class: "note", id: "loading", role: "status" }, "Computing …");
  if (!home.childElementCount) home.append(status);
  const results = await Promise.all([load(first, name), second ? load(second, name) : null]);
  if (turn !== latest) return;
  if (second && results[0].trace && results[1].trace)
    results[1] = await sameWords(results[0], results[1], second);
  const scale = results[0].trace ?? (catalogue.live ? await lengthsOf(first.run) : null);
  if (turn !== latest) return;
  show(results.filter(Boolean), name, scale);
}

async function load(about, name) {
  const { run, seed } = about;
  const missing =
    about.problem || seedProblem(catalogue, run, seed) || sequenceProblem(catalogue, run, name);
  if (missing) return { ...about, name, error: missing };
  try {
    return { ...about, name, trace: await get(paths.sequence(run.id, seed, name)) };
  } catch (error) {
    return { ...about, name, error: error.message };
  }
}

/** The lengths that a run takes, if its sequence cannot be shown; null if they are not known. */
function lengthsOf(run) {
  return get(paths.lengths(run.id)).catch(() => null);
}

/** The second run on the words of the first, if its own task draws others. */
async function sameWords(one, other, about) {
  const words = one.trace.words.join(" ");
  if (words === other.trace.words.join(" ")) return other;
  return load(about, `own-${words}`);
}

/** `scale` has the lengths of the slider, if they are known. */
function show(results, name, scale) {
  shown = [results, name, scale];
  const focus = document.activeElement?.id;
  const traced = results.filter((each) => each.trace);
  const trace = traced[0]?.trace;
  count = trace?.words.length ?? 0;
  panels = results.map((each) => new Panel(each, go));
  strip = trace ? new TokenStrip(traced, go) : null;
  const columns = el("div", { class: panels.length > 1 ? "panels two" : "panels" });
  columns.append(...panels.map((panel) => panel.element));
  home.replaceChildren(runControls(), sequenceControls(trace, name, scale));
  if (strip) home.append(stepControls(), strip.element);
  home.append(columns);
  if (!results[0].trace) home.append(...wayBack(results[0].run, name));
  panels.forEach((panel) => panel.draw());
  step();
  if (focus) document.getElementById(focus)?.focus();
}

// ---- stepping ------------------------------------------------------------------------------

function position() {
  const wanted = address.get("at") === "" ? count - 1 : Number(address.get("at"));
  return Math.max(0, Math.min(count - 1, Number.isFinite(wanted) ? Math.floor(wanted) : 0));
}

function go(at) {
  address.set({ at: Math.max(0, Math.min(count - 1, at)) }, true);
}

function step() {
  if (!strip) return;
  const at = position();
  strip.show(at);
  panels.forEach((panel) => panel.step(at));
  document.getElementById("where").textContent = `token ${at + 1} of ${count}: ${strip.words[at]}`;
  document.getElementById("token-slider").value = at;
}

function onKey(event) {
  if (!isOpen() || !strip || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.target.closest?.("input, select, textarea") && event.target.id !== "token-slider") return;
  // elsewhere these scroll the page
  const far = event.target.closest?.("#tokens, #token-slider") ? FAR : {};
  const move = STEPS[event.key] ?? far[event.key];
  if (move === undefined) return;
  event.preventDefault();
  go(position() + move);
}

function stepControls() {
  const slider = el("input", {
    id: "token-slider",
    type: "range",
    min: 0,
    max: count - 1,
    "aria-label": "Token",
    input: () => go(Number(slider.value)),
  });
  return el(
    "div",
    { class: "steps" },
    button("first", "to-first", () => go(0)),
    button("◀ back", "back", () => go(position() - 1)),
    button("next ▶", "next", () => go(position() + 1)),
    button("last", "to-last", () => go(count - 1)),
    button("next mistake", "to-mistake", () => go(strip.nextMistake(position()))),
    el("output", { id: "where" }),
    el("span", { class: "note" }, "Arrow keys step."),
    slider,
  );
}

// ---- what is shown -------------------------------------------------------------------------

function runControls() {
  const runs = runOptions(catalogue);
  const row = el("div", { class: "controls" });
  for (const [name, words, options] of [
    ["a", "Run", runs],
    ["b", "Compare with", [["", "no other run"], ...runs]],
  ]) {
    const about = side(name);
    const change = (id) => address.set({ [name]: id || null, [`${name}seed`]: null });
    row.append(choice(words, `run-${name}`, options, about?.run?.id ?? "", change));
    if (!about?.run) continue;
    const seeds = seedsOf(catalogue, about.run).map((seed) => [String(seed), String(seed)]);
    if (!seeds.length) continue;
    const pick = (seed) => address.set({ [`${name}seed`]: seed });
    row.append(choice("Seed", `seed-${name}`, seeds, String(about.seed), pick));
  }
  return row;
}

function sequenceControls(trace, name, scale) {
  const drawn = DRAWN.exec(name);
  const row = el("div", { class: "controls" });
  if (!catalogue.live) return bundled(row, name);
  const asked = Number(drawn?.[1] ?? side("a").run.length);
  // a length that the run does not take is a dead end: nothing of it leads elsewhere
  const length = trace || !scale?.lengths.length ? asked : Math.min(asked, scale.lengths.at(-1));
  const index = drawn ? Number(drawn[2]) : null; // none of a typed sequence
  if (scale?.lengths.length) row.append(lengthSlider(scale, length, index));
  const among = drawn?.[3] ? `-of-${drawn[3]}` : "";
  const most = Number(drawn?.[3] ?? SEQUENCES) - 1;
  const pick = () =>
    open_(length, Math.max(0, Math.min(most, Math.floor(Number(number.value)) || 0)), among);
  const number = el("input", { id: "number", type: "number", min: 0, max: most, change: pick });
  number.value = index ?? "";
  row.append(el("label", { class: "field" }, el("span", {}, `Sequence (0 to ${most})`), number));
  const another = () => open_(length, index === null ? 0 : (index + 1) % (most + 1), among);
  row.append(button("another sequence", "another", another));
  return el("div", {}, row, typing(trace, drawn));
}

/** From a sequence that cannot be shown to one that the run knows. */
function wayBack(run, name) {
  if (!catalogue.live || DRAWN.exec(name)?.[1] === String(run.length)) return [];
  const words = `go to 1 × (length ${run.length})`;
  return [button(words, "to-trained", () => open_(run.length, 0))];
}

function open_(length, index, among = "") {
  address.set({ seq: `draw-${length}-${index}${among}`, at: null });
}

/** A bundle has the sequences that were computed for it, and no others. */
function bundled(row, name) {
  const names = bundledSequences(catalogue, side("a").run);
  const options = names.map((each) => {
    const [, length, index, among] = DRAWN.exec(each);
    return [each, `length ${length}, number ${index}${among ? ` of ${among}` : ""}`];
  });
  const change = (seq) => address.set({ seq, at: null });
  if (names.length) row.append(choice("Sequence", "computed", options, name, change));
  const words = "This is a bundle: it has these sequences alone. 'outlast view' takes any.";
  row.append(el("p", { class: "note" }, words));
  return row;
}

function lengthSlider(scale, length, index) {
  const stops = scale.lengths;
  let nearest = 0;
  stops.forEach((stop, i) => {
    if (Math.abs(stop - length) < Math.abs(stops[nearest] - length)) nearest = i;
  });
  const say = (value) => {
    const times = Number((value / scale.trained).toPrecision(3));
    return `Length ${value}: ${times} × the training length`;
  };
  const typed = "Not drawn: the slider draws one";
  const words = el("span", { id: "length-words" }, index === null ? typed : say(length));
  const slider = el("input", {
    id: "length",
    type: "range",
    min: 0,
    max: stops.length - 1,
    input: () => (words.textContent = say(stops[slider.value])),
    change: () => open_(stops[slider.value], index ?? 0),
  });
  slider.value = nearest;
  return el("label", { class: "field wide" }, words, slider);
}

function typing(trace, drawn) {
  const text = el("textarea", { id: "own", rows: 2, spellcheck: "false" });
  text.value = trace ? trace.words.join(" ") : address.get("seq").replace(/^own-/, "");
  const read = () => {
    const words = text.value.split(/\s+/).filter(Boolean).join(" ");
    address.set({ seq: `own-${words}`, at: null });
  };
  return el(
    "details",
    { open: !drawn },
    el("summary", {}, "Type a sequence of your own"),
    el("label", { class: "field wide" }, el("span", {}, "Words of the task, with spaces between"), text),
    el("div", { class: "row" }, button("Read it", "read", read)),
  );
}
