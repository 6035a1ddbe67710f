// Failure anatomy: for each length, which share of answers fails for which cause.

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
import { get, paths } from "./data.js";
import { choice, el, percent, plain } from "./dom.js";
import { summary } from "./statistics.js";
import { colour, config, layout } from "./theme.js";

/** The causes of `outlast analyse` from the bottom of a bar to its top: words, colour, pattern. */
const CAUSES = {
  right: ["right", "right-shade", ""],
  state: ["state wrong", "c0", "/"],
  unfocused: ["attention spread out", "c5", "|"],
  key: ["wrong key attended", "c1", "x"],
  diluted: ["right key, diluted", "c4", "."],
  value: ["right key, value wrong", "c3", "\\"],
  output: ["state right, output wrong", "c2", "-"],
  no_attention: ["no attention", "c6", "+"],
  unread: ["no probe reads the state", "ink", ""],
};
const OTHER = ["", "c6", "|"];
const DRAWN = ["tab", "a", "theme", "cause-of"];
const LISTED = ["cause", "of", "aseed"];
let home, catalogue, latest = 0, latestList = 0;
let shown = null; // the run, the part and the lengths of the table that stands on the page

/** Build the view into its section. */
export function open(section, data) {
  home = section;
  catalogue = data;
  address.onChange((changed) => {
    if (!isOpen()) return;
    if (DRAWN.some((name) => changed.has(name))) draw();
    else if (shown && LISTED.some((name) => changed.has(name))) {
      drawList();
      document.getElementById("examples").scrollIntoView({ block: "nearest" });
    }
  });
  // someone who comes back from a terminal may have analysed the run there
  addEventListener("focus", async () => {
    if (!isOpen() || shown) return;
    const { run } = findRun(catalogue, "a");
    const table = run && (await get(paths.anatomy(run.id)).catch(() => null));
    if (table?.rows.length) draw();
  });
  if (isOpen()) draw();
}

function isOpen() {
  return address.get("tab") === "anatomy";
}

async function draw() {
  const turn = ++latest;
  const { run, problem } = findRun(catalogue, "a");
  const pick = (a) => address.set({ a, aseed: null });
  const control = choice("Run", "anatomy-run", runOptions(catalogue), run?.id ?? "", pick);
  let table = null;
  let words = problem;
  if (run)
    try {
      table = await get(paths.anatomy(run.id));
      words = table.message;
    } catch (error) {
      words = error.message;
    }
  if (turn !== latest) return;
  const focus = document.activeElement?.id;
  const content = el("div", { class: "content" }, el("div", { class: "controls" }, control));
  home.replaceChildren(content);
  shown = null;
  if (words) {
    const kind = table ? "note" : "problem";
    content.append(el("p", { class: kind, id: "anatomy-words" }, words, ...advice(run, table)));
  } else {
    const note = el("p", { class: "note", id: "anatomy-note" }, table.note, ...advice(run, table));
    content.append(note);
    picture(content, run, table);
    drawList();
  }
  if (focus) document.getElementById(focus)?.focus();
}

/** The command that makes an anatomy, where it is wanting; a bundle knows no folders. */
function advice(run, table) {
  if (!table?.wanting || !run.analyse) return [];
  const words = table.rows.length ? "makes it anew" : "computes it";
  return [` This command ${words}: `, el("code", {}, run.analyse)];
}

function wordsOf(cause) {
  return CAUSES[cause]?.[0] ?? cause;
}

function picture(content, run, table) {
  const parts = [...new Set(table.rows.map((row) => row.part).filter(Boolean))];
  const part = parts.includes(address.get("cause-of")) ? address.get("cause-of") : parts[0];
  if (parts.length > 1) {
    const options = parts.map((name) => [name, name]);
    const change = (name) => address.set({ "cause-of": name });
    content.firstElementChild.append(choice("Part", "anatomy-part", options, part, change));
  }
  const rows = table.rows.filter((row) => row.part === part);
  const lengths = [...new Set(rows.map((row) => row.length))].sort((a, b) => a - b);
  const listed = listedLengths(catalogue, run, lengths);
  if (listed.length) {
    const seeds = seedsOf(catalogue, run).map((seed) => [String(seed), String(seed)]);
    const pick = (aseed) => address.set({ aseed });
    const seed = String(seedOf(run, "aseed"));
    content.firstElementChild.append(
      choice("Seed of the sequences", "anatomy-seed", seeds, seed, pick),
    );
  }
  const seen = new Set(rows.filter((row) => row.share > 0).map((row) => row.cause));
  const causes = [...new Set([...Object.keys(CAUSES), ...seen])].filter((cause) => seen.has(cause));
  const place = el("div", { class: "plot", id: "causes" });
  const list = el("div", { id: "examples", "aria-live": "polite" });
  const share = (length, cause) =>
    summary(rows.filter((row) => row.length === length && row.cause === cause).map((row) => row.share));
  const open = (length, cause) => {
    if (listed.includes(length)) address.set({ cause, of: length });
  };
  content.append(el("figure", {}, place, el("p", { class: "note" }, caption(lengths, listed))));
  content.append(summaryTable(lengths, listed, causes, share, open), list);
  shown = { run, part, lengths };
  const traces = causes.map((cause) => ({
    type: "bar",
    name: plain(wordsOf(cause)),
    x: lengths.map(String),
    y: lengths.map((length) => share(length, cause)?.mean ?? 0),
    marker: {
      color: colour((CAUSES[cause] ?? OTHER)[1]),
      pattern: {
        shape: (CAUSES[cause] ?? OTHER)[2],
        fillmode: "overlay",
        fgcolor: colour("page"),
        fgopacity: 0.45,
      },
    },
    text: lengths.map((length) => {
      const found = share(length, cause);
      return found ? `${percent(found.mean)} (${percent(found.low)} to ${percent(found.high)})` : "";
    }),
    textposition: "none",
    hovertemplate: "%{fullData.name}<br>length %{x}: %{text}<extra></extra>",
  }));
  const shape = layout({
    barmode: "stack",
    showlegend: true,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: colour("ink") } },
    xaxis: { title: "length", type: "category" },
    yaxis: { title: "share of answers", tickformat: ".0%", range: [0, 1] },
  });
  Plotly.newPlot(place, traces, shape, config);
  place.on("plotly_click", ({ points: [point] }) =>
    open(lengths[point.pointIndex], causes[point.curveNumber]),
  );
}

function caption(lengths, listed) {
  if (!listed.length) return "Mean over seeds.";
  const some = listed.length < lengths.length ? `, at length ${listed.join(", ")}` : "";
  return `Mean over seeds. A click on a bar, or on a number, lists sequences of that cause${some}.`;
}

/** The same numbers as a table; those that list sequences can be reached with the keyboard. */
function summaryTable(lengths, listed, causes, share, open) {
  const words = causes.map((cause) => el("th", {}, wordsOf(cause)));
  const head = el("tr", {}, el("th", {}, "length"), ...words);
  const rows = lengths.map((length) => {
    const cells = causes.map((cause) => {
      const found = share(length, cause);
      if (!found) return el("td", {});
      if (!listed.includes(length)) return el("td", {}, percent(found.mean));
      const place = { "data-of": length, "data-cause": cause };
      const attributes = { type: "button", ...place, click: () => open(length, cause) };
      return el("td", {}, el("button", attributes, percent(found.mean)));
    });
    return el("tr", {}, el("th", {}, String(length)), ...cells);
  });
  const table = el("table", { id: "causes-table" }, el("thead", {}, head), el("tbody", {}, ...rows));
  return el("div", { class: "box", tabindex: 0, role: "region", "aria-label": "Causes" }, table);
}

/** The sequences of the cause, the length and the seed in the address. */
async function drawList() {
  const turn = ++latestList;
  const { run, part, lengths } = shown;
  const cause = address.get("cause");
  const length = Number(address.get("of"));
  const seed = seedOf(run, "aseed");
  const list = document.getElementById("examples");
  const select = document.getElementById("anatomy-seed");
  if (select) select.value = String(seed);
  for (const cell of document.querySelectorAll("#causes-table button")) {
    const open = cell.dataset.cause === cause && Number(cell.dataset.of) === length;
    cell.setAttribute("aria-pressed", String(open));
  }
  if (!cause) return list.replaceChildren();
  const place = el("div", {}, el("p", { class: "note" }, "Looking for sequences …"));
  list.replaceChildren(el("h3", {}, `${wordsOf(cause)}, length ${length}`), place);
  const test = (row) => row.cause === cause && (!part || row.part === part);
  let content;
  try {
    content = await examples(run, seed, length, lengths, test);
  } catch (error) {
    content = [el("p", { class: "problem" }, error.message)];
  }
  if (turn === latestList) place.replaceChildren(...content);
}

/** Links to answers that a test holds for, or words that there are none. */
async function examples(run, seed, length, lengths, test) {
  const problem = seedProblem(catalogue, run, seed);
  if (problem) throw new Error(problem);
  if (!lengths.includes(length)) throw new Error(`This anatomy has no length ${length}.`);
  const found = await get(paths.examples(run.id, seed, length));
  const name = (row) => `draw-${row.length}-${row.row}-of-${found.sequences}`;
  const rows = found.examples.filter(test);
  const kept = rows.filter((row) => !sequenceProblem(catalogue, run, name(row)));
  const links = kept.map((row) => {
    const seq = name(row);
    const href = address.href({ tab: "sequence", a: run.id, aseed: seed, seq, at: row.token });
    const words = `seed ${seed}, sequence ${row.row}, token ${row.token + 1}`;
    return el("li", {}, el("a", { href }, words));
  });
  const none = `None of ${found.sequences} sequences of seed ${seed} has such an answer.`;
  const some = `${kept.length} of ${rows.length} are in this bundle; 'outlast view' shows all.`;
  const all = `Looked for in ${found.sequences} sequences; at most ${found.most} answers are listed.`;
  const words = !rows.length ? none : kept.length < rows.length ? some : all;
  return [el("ul", {}, ...links), el("p", { class: "note" }, words)];
}
