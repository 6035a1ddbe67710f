// Failure anatomy: for each length, which share of answers fails for which cause, of one run or of two.

import * as address from "./address.js";
import {
  findRun,
  listedLengths,
  runOptions,
  seedOf,
  seedProblem,
  seedsOf,
  sequenceProblem,
} from "./catalogue.js";
import { Causes, lengthWords, wordsOf, worstPart } from "./causes.js";
import { get, paths } from "./data.js";
import { choice, el } from "./dom.js";

const DRAWN = ["tab", "a", "b", "cause-of"];
const LISTED = ["cause", "of", "on", "aseed", "bseed"];
let home, catalogue, latest = 0, latestList = 0;
let sides = []; // the runs that stand on the page: side, run, table or problem, causes
let part; // of which the causes are shown

/** Build the view into its section. */
export function open(section, data) {
  home = section;
  catalogue = data;
  address.onChange((changed) => {
    if (!isOpen()) return;
    if (DRAWN.some((name) => changed.has(name))) return draw();
    if (changed.has("theme")) sides.forEach((each) => each.causes?.draw());
    if (listing() && LISTED.some((name) => changed.has(name))) {
      drawList();
      document.getElementById("examples").scrollIntoView({ block: "nearest" });
    }
  });
  // someone who comes back from a terminal may have analysed the run there
  addEventListener("focus", async () => {
    if (!isOpen()) return;
    const lacking = sides.filter((each) => each.run && each.words);
    const tables = lacking.map((each) => get(paths.anatomy(each.run.id)).catch(() => null));
    if ((await Promise.all(tables)).some((table) => table?.rows.length)) draw();
  });
  if (isOpen()) draw();
}

function isOpen() {
  return address.get("tab") === "anatomy";
}

/** The side whose sequences are listed, if it has an anatomy. */
function listing() {
  const name = address.get("on") === "b" ? "b" : "a";
  return sides.find((each) => each.side === name && each.causes);
}

async function load(side) {
  const { run, problem } = findRun(catalogue, side);
  if (!run) return { side, words: problem };
  try {
    const table = await get(paths.anatomy(run.id));
    return { side, run, table, words: table.message };
  } catch (error) {
    return { side, run, words: error.message };
  }
}

async function draw() {
  const turn = ++latest;
  const loaded = await Promise.all((address.get("b") ? ["a", "b"] : ["a"]).map(load));
  if (turn !== latest) return;
  const focus = document.activeElement?.id;
  const tables = loaded.map((each) => (each.words ? [] : each.table.rows));
  const parts = [...new Set(tables.flat().map((row) => row.part).filter(Boolean))];
  const wanted = address.get("cause-of");
  part = parts.includes(wanted) ? wanted : worstPart(parts, tables.flat());
  sides = loaded.map((each, index) => ({ ...each, causes: causesOf(each, tables[index]) }));
  const columns = el("div", { class: sides.length > 1 ? "panels two" : "panels" });
  columns.append(...sides.map(panel));
  const list = el("div", { id: "examples", "aria-live": "polite" });
  home.replaceChildren(el("div", { class: "content" }, controls(parts), columns, list));
  sides.forEach((each) => each.causes?.draw());
  if (listing()) drawList();
  if (focus) document.getElementById(focus)?.focus();
}

/** The seed whose sequences are listed: without one in the address, that with most of the cause. */
function listedSeed({ run, side, causes }) {
  const name = `${side}seed`;
  if (address.get(name) || !causes) return seedOf(run, name);
  const length = Number(address.get("of"));
  return seedsWith(causes, run, length, address.get("cause"))[0] ?? seedOf(run, name);
}

/** The seeds that have answers of a cause at a length and can be looked at, that with most first. */
function seedsWith(causes, run, length, cause) {
  const shares = causes.sharesBySeed(length, cause);
  const known = seedsOf(catalogue, run).filter((seed) => shares.get(seed) > 0);
  return known.sort((one, other) => shares.get(other) - shares.get(one));
}

/** The figure and the table of a run, if it has an anatomy of the part. */
function causesOf({ run, side }, table) {
  const rows = table.filter((row) => row.part === part);
  if (!rows.length) return null;
  const lengths = [...new Set(rows.map((row) => row.length))].sort((a, b) => a - b);
  const listed = listedLengths(catalogue, run, lengths);
  const on = side === "b" ? "b" : null;
  const show = (of, cause) => address.set({ cause, of, on });
  return new Causes({ run, side, rows, lengths, listed, open: show });
}

function controls(parts) {
  const row = el("div", { class: "controls" });
  const runs = runOptions(catalogue);
  const [first, second] = sides;
  const pickFirst = (a) => address.set({ a, aseed: null });
  row.append(choice("Run", "anatomy-run", runs, first.run?.id ?? "", pickFirst));
  row.append(...seedChoice(first, "anatomy-seed"));
  const pickSecond = (b) => {
    const closed = address.get("on") ? { on: null, cause: null, of: null } : {};
    address.set({ b: b || null, bseed: null, ...closed });
  };
  const others = [["", "no other run"], ...runs];
  row.append(choice("Compare with", "anatomy-other", others, second?.run?.id ?? "", pickSecond));
  if (second) row.append(...seedChoice(second, "anatomy-seed-b"));
  if (parts.length > 1) {
    const options = parts.map((name) => [name, name]);
    const change = (name) => address.set({ "cause-of": name, cause: null, of: null, on: null });
    row.append(choice("Part", "anatomy-part", options, part, change));
  }
  return row;
}

/** Whose sequences are looked at, where some can be listed. */
function seedChoice({ run, side, causes }, id) {
  if (!causes?.listed.length) return [];
  const seeds = seedsOf(catalogue, run).map((seed) => [String(seed), String(seed)]);
  const pick = (seed) => address.set({ [`${side}seed`]: seed });
  return [choice("Seed of the sequences", id, seeds, String(seedOf(run, `${side}seed`)), pick)];
}

function panel({ side, run, table, words, causes }) {
  const element = el("article", { class: "panel", id: `anatomy-${side}` });
  if (run && sides.length > 1) element.append(el("h2", {}, run.label));
  if (words) {
    const kind = table ? "note" : "problem";
    element.append(el("p", { class: kind, id: `anatomy-words-${side}` }, words, ...advice(run, table)));
    return element;
  }
  element.append(el("p", { class: "note" }, table.note, ...advice(run, table)));
  element.append(causes?.element ?? el("p", { class: "note" }, `It has no part ${part}.`));
  return element;
}

/** The command that makes an anatomy, where it is wanting; a bundle knows no folders. */
function advice(run, table) {
  if (!table?.wanting || !run.analyse) return [];
  const words = table.rows.length ? "makes it anew" : "computes it";
  return [` This command ${words}: `, el("code", {}, run.analyse)];
}

/** The sequences of the cause, the length and the seed in the address. */
async function drawList() {
  const turn = ++latestList;
  const about = listing();
  const { run, side } = about;
  const cause = address.get("cause");
  const length = Number(address.get("of"));
  const seed = listedSeed(about);
  const list = document.getElementById("examples");
  for (const each of sides) {
    const select = document.getElementById(each.side === "b" ? "anatomy-seed-b" : "anatomy-seed");
    if (select) select.value = String(each === about ? seed : seedOf(each.run, `${each.side}seed`));
    each.causes?.mark(length, each === about ? cause : "");
  }
  if (!cause) return list.replaceChildren();
  const place = el("div", {}, el("p", { class: "note" }, "Looking for sequences …"));
  const whose = sides.length > 1 ? `${run.label}: ` : "";
  const head = `${whose}${wordsOf(cause)}, length ${lengthWords(run, length)}`;
  list.replaceChildren(el("h3", {}, head), place);
  let content;
  try {
    content = await examples(about, seed, length, cause);
  } catch (error) {
    content = [el("p", { class: "problem" }, error.message)];
  }
  if (turn === latestList) place.replaceChildren(...content);
}

/** Links to answers of a cause, or words that there are none. */
async function examples({ run, side, causes }, seed, length, cause) {
  const problem = seedProblem(catalogue, run, seed);
  if (problem) throw new Error(problem);
  if (!causes.lengths.includes(length)) throw new Error(`This anatomy has no length ${length}.`);
  const found = await get(paths.examples(run.id, seed, length));
  const name = (row) => `draw-${row.length}-${row.row}-of-${found.sequences}`;
  const rows = found.examples.filter((row) => row.cause === cause && (!part || row.part === part));
  const kept = rows.filter((row) => !sequenceProblem(catalogue, run, name(row)));
  // the other run of a comparison reads the same words
  const other = side === "b" ? { b: sides[0].run?.id ?? null, bseed: address.get("aseed") || null } : {};
  const links = kept.map((row) => {
    const state = { tab: "sequence", a: run.id, aseed: seed, ...other, seq: name(row), at: row.token };
    const words = `seed ${seed}, sequence ${row.row}, token ${row.token + 1}`;
    return el("li", {}, el("a", { href: address.href(state) }, words));
  });
  const none = [
    `None of ${found.sequences} sequences of seed ${seed} has such an answer.`,
    ...otherSeeds(seedsWith(causes, run, length, cause).filter((each) => each !== seed), side),
  ];
  const some = `${kept.length} of ${rows.length} are in this bundle; 'outlast view' shows all.`;
  const all = `Looked for in ${found.sequences} sequences; at most ${found.most} answers are listed.`;
  const words = !rows.length ? none : [kept.length < rows.length ? some : all];
  return [el("ul", {}, ...links), el("p", { class: "note" }, ...words)];
}

/** Links to other seeds that have answers of a cause. */
function otherSeeds(seeds, side) {
  if (!seeds.length) return [];
  const links = seeds.flatMap((seed) => {
    const href = address.href({ [`${side}seed`]: seed });
    return [", ", el("a", { href }, `seed ${seed}`)];
  });
  return [" The table counts some of ", ...links.slice(1), "."];
}
