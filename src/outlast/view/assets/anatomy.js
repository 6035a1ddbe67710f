// Failure anatomy: for each length, which share of answers fails for which cause.

import * as address from "./address.js";
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
};
const OTHER = ["", "c6", "|"];
let home, catalogue, latest = 0;

/** Build the view into its section. */
export function open(section, data) {
  home = section;
  catalogue = data;
  const ours = ["tab", "a", "theme", "cause-of"];
  address.onChange((changed) => {
    if (isOpen() && ours.some((name) => changed.has(name))) draw();
  });
  if (isOpen()) draw();
}

function isOpen() {
  return address.get("tab") === "anatomy";
}

async function draw() {
  const turn = ++latest;
  const runs = catalogue.runs.filter((run) => !run.problem);
  const run = runs.find((each) => each.id === address.get("a")) ?? runs[0];
  const options = runs.map((each) => [each.id, each.study ? `${each.study}: ${each.label}` : each.label]);
  const pick = choice("Run", "anatomy-run", options, run.id, (a) => address.set({ a, aseed: null }));
  let table, words;
  try {
    table = await get(paths.anatomy(run.id));
    words = table.message;
  } catch (error) {
    words = error.message;
  }
  if (turn !== latest) return;
  const focus = document.activeElement?.id;
  const content = el("div", { class: "content" }, el("div", { class: "controls" }, pick));
  home.replaceChildren(content);
  if (words) content.append(el("p", { class: "note", id: "anatomy-words" }, words));
  else picture(content, run, table);
  if (focus) document.getElementById(focus)?.focus();
}

function wordsOf(cause) {
  return CAUSES[cause]?.[0] ?? cause;
}

/** The seed whose sequences are listed. */
function seedOf(run) {
  const seed = Number(address.get("aseed", run.seeds[0]));
  return run.seeds.includes(seed) ? seed : run.seeds[0];
}

function picture(content, run, table) {
  const parts = [...new Set(table.rows.map((row) => row.part).filter(Boolean))];
  const part = parts.includes(address.get("cause-of")) ? address.get("cause-of") : parts[0];
  if (parts.length > 1) {
    const options = parts.map((name) => [name, name]);
    const change = (name) => address.set({ "cause-of": name });
    content.firstElementChild.append(choice("Part", "anatomy-part", options, part, change));
  }
  const seeds = run.seeds.map((seed) => [String(seed), String(seed)]);
  const pickSeed = (aseed) => address.set({ aseed }, true);
  content.firstElementChild.append(
    choice("Seed of the sequences", "anatomy-seed", seeds, String(seedOf(run)), pickSeed),
  );
  const rows = table.rows.filter((row) => row.part === part);
  const lengths = [...new Set(rows.map((row) => row.length))].sort((a, b) => a - b);
  const seen = new Set(rows.filter((row) => row.share > 0).map((row) => row.cause));
  const causes = [...new Set([...Object.keys(CAUSES), ...seen])].filter((cause) => seen.has(cause));
  const place = el("div", { class: "plot", id: "causes" });
  const list = el("div", { id: "examples", "aria-live": "polite" });
  const caption = "Mean over seeds. A click on a bar, or on a number, lists sequences of that cause.";
  const share = (length, cause) =>
    summary(rows.filter((row) => row.length === length && row.cause === cause).map((row) => row.share));
  const open = (length, cause) => showExamples(list, run, { length, cause, part });
  content.append(el("figure", {}, place, el("p", { class: "note" }, caption)));
  content.append(summaryTable(lengths, causes, share, open), list);
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
    legend: { orientation: "h", y: -0.25, font: { color: colour("ink") } },
    xaxis: { title: "length", type: "category" },
    yaxis: { title: "share of answers", tickformat: ".0%", range: [0, 1] },
  });
  Plotly.newPlot(place, traces, shape, config);
  place.on("plotly_click", ({ points: [point] }) =>
    open(lengths[point.pointIndex], causes[point.curveNumber]),
  );
}

/** The same numbers as a table, whose cells can be reached with the keyboard. */
function summaryTable(lengths, causes, share, open) {
  const words = causes.map((cause) => el("th", {}, wordsOf(cause)));
  const head = el("tr", {}, el("th", {}, "length"), ...words);
  const rows = lengths.map((length) => {
    const cells = causes.map((cause) => {
      const found = share(length, cause);
      if (!found) return el("td", {});
      const attributes = { type: "button", click: () => open(length, cause) };
      return el("td", {}, el("button", attributes, percent(found.mean)));
    });
    return el("tr", {}, el("th", {}, String(length)), ...cells);
  });
  const table = el("table", { id: "causes-table" }, el("thead", {}, head), el("tbody", {}, ...rows));
  return el("div", { class: "box", tabindex: 0, role: "region", "aria-label": "Causes" }, table);
}

async function showExamples(list, run, wanted) {
  const title = `${wordsOf(wanted.cause)}, length ${wanted.length}`;
  const place = el("div", {}, el("p", { class: "note" }, "Looking for sequences …"));
  const seed = seedOf(run);
  list.replaceChildren(el("h3", {}, title), place);
  list.scrollIntoView({ block: "nearest" });
  let found;
  try {
    found = await get(paths.examples(run.id, seed, wanted.length));
  } catch (error) {
    return place.replaceChildren(el("p", { class: "problem" }, error.message));
  }
  const rows = found.examples.filter(
    (row) => row.cause === wanted.cause && (!wanted.part || row.part === wanted.part),
  );
  const links = rows.map((row) => {
    const seq = `draw-${row.length}-${row.row}-of-${found.sequences}`;
    const open = (event) => {
      event.preventDefault();
      address.set({ tab: "sequence", a: run.id, aseed: seed, seq, at: row.token });
    };
    const words = `seed ${seed}, sequence ${row.row}, token ${row.token + 1}`;
    return el("li", {}, el("a", { href: "#tab=sequence", click: open }, words));
  });
  const none = `None of ${found.sequences} sequences of seed ${seed} has such an answer.`;
  place.replaceChildren(links.length ? el("ul", {}, ...links) : el("p", { class: "note" }, none));
}
