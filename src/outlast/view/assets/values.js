// The numbers of a figure as a table: for the keyboard, and where nothing hovers.

import * as address from "./address.js";
import { el } from "./dom.js";

// columns of a learning curve, besides its end
const COLUMNS = 10;

/**
 * A table that opens below a figure. Lines and marks are those of the figure: `name` is a row's head,
 * `customdata` has the words of each point. `options` has how an x is written (`say`), whether the lines
 * have too many points for a column each (`thin`), and where a point leads (`link`).
 */
export function valuesTable(id, traces, options) {
  const place = el("div", {});
  const toggle = () => {
    const others = (address.list("values") ?? []).filter((name) => name !== id);
    const open = details.open ? [...others, id] : others;
    address.set({ values: open.length ? open.join(",") : null }, true);
    if (details.open && !place.childElementCount) place.append(...content(traces, options));
  };
  const open = Boolean(address.list("values")?.includes(id));
  const head = el("summary", { id: `${id}-values-head` }, "Values");
  const details = el("details", { id: `${id}-values`, open, toggle }, head, place);
  return details;
}

function content(traces, { say, thin, link }) {
  const lines = traces.filter((trace) => trace.customdata);
  const columns = thin ? someColumns(lines) : unique(lines.flatMap((line) => line.x));
  const heads = columns.map((x) => el("th", { scope: "col" }, say(x)));
  const rows = lines.map((line) => {
    const cells = columns.map((x) => {
      const words = line.customdata[thin ? lastUpTo(line.x, x) : line.x.indexOf(x)] ?? "";
      const href = words && link ? link(line, x) : null;
      return el("td", {}, href ? el("a", { href }, words) : words);
    });
    return el("tr", {}, el("th", { scope: "row" }, line.name), ...cells);
  });
  const head = el("thead", {}, el("tr", {}, el("th", {}, ""), ...heads));
  const table = el("table", {}, head, el("tbody", {}, ...rows));
  const marks = traces.filter((trace) => trace.mode === "markers");
  return [
    el("div", { class: "box values", tabindex: 0, role: "region", "aria-label": "Values" }, table),
    thin ? el("p", { class: "note" }, "Each number is that of the last step measured so far.") : null,
    ...marks.map((each) => el("p", { class: "note" }, `${each.name}: ${each.text.join("; ")}.`)),
  ].filter(Boolean);
}

function unique(values) {
  return [...new Set(values)].sort((one, other) => one - other);
}

/** Some steps with the same distance, and the end of each line. */
function someColumns(lines) {
  const all = unique(lines.flatMap((line) => line.x));
  const count = Math.min(COLUMNS, all.length);
  const some = Array.from({ length: count }, (_, i) =>
    all[Math.round((i * (all.length - 1)) / Math.max(1, count - 1))],
  );
  return unique([...some, ...lines.map((line) => line.x.at(-1))]);
}

/** The place of the last point up to x; -1 before the first and after the end. */
function lastUpTo(xs, x) {
  return x > xs.at(-1) ? -1 : xs.findLastIndex((each) => each <= x);
}
