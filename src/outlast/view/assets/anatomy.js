// Failure anatomy: for each length, which share of sequences fails for which cause.

import * as address from "./address.js";
import { get, paths } from "./data.js";
import { choice, el, percent, plain } from "./dom.js";
import { summary } from "./statistics.js";
import { colour, config, layout } from "./theme.js";

const PATTERNS = ["", "/", "x", ".", "\\", "-", "+"];
let home, catalogue, latest = 0;

/** Build the view into its section. */
export function open(section, data) {
  home = section;
  catalogue = data;
  const ours = ["tab", "a", "theme", "aseed"];
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

function picture(content, run, table) {
  const lengths = [...new Set(table.rows.map((row) => row.length))].sort((a, b) => a - b);
  const causes = [...new Set(table.rows.map((row) => row.cause))];
  const place = el("div", { class: "plot", id: "causes" });
  const list = el("div", { id: "examples", "aria-live": "polite" });
  const caption = "Mean over seeds. A click on a bar lists sequences that failed so.";
  content.append(el("figure", {}, place, el("p", { class: "note" }, caption)), list);
  const rowsOf = (length, cause) =>
    table.rows.filter((row) => row.length === length && row.cause === cause);
  const traces = causes.map((cause, index) => ({
    type: "bar",
    name: plain(cause),
    x: lengths.map(String),
    y: lengths.map((length) => summary(rowsOf(length, cause).map((row) => row.share))?.mean ?? 0),
    marker: {
      color: colour(`c${index % 7}`),
      pattern: { shape: PATTERNS[index % PATTERNS.length], fillmode: "replace" },
    },
    text: lengths.map((length) => {
      const found = summary(rowsOf(length, cause).map((row) => row.share));
      return found ? `${percent(found.mean)}, ${found.count} seeds` : "";
    }),
    textposition: "none",
    hovertemplate: `${plain(cause)}<br>length %{x}: %{text}<extra></extra>`,
  }));
  const shape = layout({
    barmode: "stack",
    showlegend: true,
    legend: { orientation: "h", y: -0.25, font: { color: colour("ink") } },
    xaxis: { title: "length", type: "category" },
    yaxis: { title: "share", tickformat: ".0%", rangemode: "tozero" },
  });
  Plotly.newPlot(place, traces, shape, config);
  place.on("plotly_click", (event) => {
    const point = event.points[0];
    showExamples(list, run, lengths[point.pointIndex], causes[point.curveNumber], rowsOf);
  });
  content.append(summaryTable(lengths, causes, rowsOf, list, run));
}

/** The same numbers as a table, whose cells can be reached with the keyboard. */
function summaryTable(lengths, causes, rowsOf, list, run) {
  const head = el("tr", {}, el("th", {}, "length"), ...causes.map((cause) => el("th", {}, cause)));
  const rows = lengths.map((length) => {
    const cells = causes.map((cause) => {
      const found = summary(rowsOf(length, cause).map((row) => row.share));
      if (!found) return el("td", {});
      const open = () => showExamples(list, run, length, cause, rowsOf);
      return el("td", {}, el("button", { type: "button", click: open }, percent(found.mean)));
    });
    return el("tr", {}, el("th", {}, String(length)), ...cells);
  });
  const table = el("table", { id: "causes-table" }, el("thead", {}, head), el("tbody", {}, ...rows));
  return el("div", { class: "box", tabindex: 0, role: "region", "aria-label": "Causes" }, table);
}

function showExamples(list, run, length, cause, rowsOf) {
  const links = rowsOf(length, cause).flatMap((row) =>
    row.examples.map((example) => {
      const seed = row.seed ?? run.seeds[0];
      const seq = `draw-${length}-${example.index}${example.of ? `-of-${example.of}` : ""}`;
      const open = (event) => {
        event.preventDefault();
        address.set({ tab: "sequence", a: run.id, aseed: seed, seq, at: example.at ?? null });
      };
      const words = `seed ${seed}, sequence ${example.index}`;
      return el("li", {}, el("a", { href: `#tab=sequence`, click: open }, words));
    }),
  );
  list.replaceChildren(
    el("h3", {}, `${cause}, length ${length}`),
    links.length ? el("ul", {}, ...links) : el("p", { class: "note" }, "No sequence was recorded."),
  );
  list.scrollIntoView({ block: "nearest" });
}
