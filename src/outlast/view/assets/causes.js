// The causes of one run's failures by length, as a figure and as a table.

import { el, percent, plain } from "./dom.js";
import { summary } from "./statistics.js";
import { colour, config, layout } from "./theme.js";

/** The causes of `outlast analyse` from the bottom of a bar to its top: words and pattern. Their colours,
 * those of the report, are in the style sheet. */
const CAUSES = {
  right: ["right", ""],
  state: ["state wrong", "/"],
  unfocused: ["attention spread out", "|"],
  key: ["wrong key attended", "x"],
  diluted: ["right key, diluted", "."],
  value: ["right key, value wrong", "\\"],
  output: ["state or value right, output wrong", "-"],
  no_attention: ["no attention", "+"],
  unread: ["no probe reads the state", ""],
};
const LEGEND = {
  orientation: "h", x: 0, y: 1.02, yanchor: "bottom", itemclick: false, itemdoubleclick: false,
};

export function wordsOf(cause) {
  return CAUSES[cause]?.[0] ?? cause;
}

/** A length as everywhere on the page: with its multiple of the training length. */
export function lengthWords(run, length) {
  return `${length} (${Number((length / run.length).toPrecision(3))} ×)`;
}

/** The part of which most answers fail, over all rows; the first of several. */
export function worstPart(parts, rows) {
  const failing = (part) => {
    const own = rows.filter((row) => row.part === part);
    const cells = new Set(own.map((row) => `${row.seed} ${row.length}`)).size;
    const wrong = own.filter((row) => row.cause !== "right");
    return wrong.reduce((sum, row) => sum + row.share, 0) / Math.max(1, cells);
  };
  const shares = parts.map(failing);
  return parts[shares.indexOf(Math.max(...shares))];
}

/** The figure and the table of a run. `open` is called with a length and a cause of those listed. */
export class Causes {
  constructor({ run, side, rows, lengths, listed, open }) {
    Object.assign(this, { run, rows, lengths, listed });
    this.open = (length, cause) => {
      if (listed.includes(length)) open(length, cause);
    };
    const seen = new Set(rows.filter((row) => row.share > 0).map((row) => row.cause));
    const known = new Set([...Object.keys(CAUSES), ...seen]);
    this.causes = [...known].filter((cause) => seen.has(cause));
    const id = side === "a" ? "causes" : `causes-${side}`;
    this.place = el("div", { class: "plot causes", id });
    this.element = el(
      "div",
      {},
      el("figure", {}, this.place, el("p", { class: "note" }, this.caption())),
      this.table(`${id}-table`),
    );
  }

  share(length, cause) {
    return summary([...this.sharesBySeed(length, cause).values()]);
  }

  /** The share of a cause at a length, by seed. */
  sharesBySeed(length, cause) {
    const rows = this.rows.filter((row) => row.length === length && row.cause === cause);
    return new Map(rows.map((row) => [row.seed, row.share]));
  }

  caption() {
    const { listed, lengths } = this;
    const mean = "Mean over seeds; in the table also the lowest and the highest seed.";
    if (!listed.length) return mean;
    const some = listed.length < lengths.length ? `, at length ${listed.join(", ")}` : "";
    return `${mean} A click on a bar, or on a number, lists sequences of that cause${some}.`;
  }

  /** The same numbers as a table; those that list sequences can be reached with the keyboard. */
  table(id) {
    const words = this.causes.map((cause) => el("th", { scope: "col" }, wordsOf(cause)));
    const head = el("tr", {}, el("th", { scope: "col" }, "length"), ...words);
    const rows = this.lengths.map((length) => {
      const cells = this.causes.map((cause) => this.cell(length, cause));
      const name = el("th", { scope: "row" }, lengthWords(this.run, length));
      return el("tr", {}, name, ...cells);
    });
    const table = el("table", { id }, el("thead", {}, head), el("tbody", {}, ...rows));
    const region = { tabindex: 0, role: "region", "aria-label": "Causes" };
    return el("div", { class: "box shares", ...region }, table);
  }

  cell(length, cause) {
    const share = this.share(length, cause);
    if (!share) return el("td", {});
    const several = share.count > 1;
    const spread = several ? el("span", { class: "spread" }, spreadWords(share)) : null;
    if (!this.listed.includes(length)) return el("td", {}, percent(share.mean), spread);
    const place = { "data-of": length, "data-cause": cause };
    const attributes = { type: "button", ...place, click: () => this.open(length, cause) };
    return el("td", {}, el("button", attributes, percent(share.mean)), spread);
  }

  /** Draw the figure; the element must be on the page. */
  draw() {
    const traces = this.causes.map((cause) => {
      const [name, shape] = CAUSES[cause] ?? [cause, "|"];
      const shares = this.lengths.map((length) => this.share(length, cause));
      return {
        type: "bar",
        name: plain(name),
        x: this.lengths.map((length) => lengthWords(this.run, length)),
        y: shares.map((share) => share?.mean ?? 0),
        marker: {
          color: colour(cause in CAUSES ? `cause-${cause}` : "c6"),
          pattern: { shape, fillmode: "overlay", fgcolor: colour("page"), fgopacity: 0.45 },
        },
        text: shares.map((share) => (share ? `${percent(share.mean)} (${spreadWords(share)})` : "")),
        textposition: "none",
        hovertemplate: "%{fullData.name}<br>length %{x}: %{text}<extra></extra>",
      };
    });
    const ink = { color: colour("ink") };
    const shape = layout({
      barmode: "stack",
      showlegend: true,
      // a cause that were hidden would be missing in the stack, and not in the address
      legend: { ...LEGEND, font: ink },
      xaxis: { title: "length", type: "category" },
      yaxis: { title: "share of answers", tickformat: ".0%", range: [0, 1] },
    });
    Plotly.newPlot(this.place, traces, shape, config);
    this.place.on("plotly_click", ({ points: [point] }) =>
      this.open(this.lengths[point.pointIndex], this.causes[point.curveNumber]),
    );
  }

  /** Mark the number whose sequences are listed. */
  mark(length, cause) {
    for (const cell of this.element.querySelectorAll("button")) {
      const pressed = cell.dataset.cause === cause && Number(cell.dataset.of) === length;
      cell.setAttribute("aria-pressed", String(pressed));
    }
  }
}

function spreadWords(share) {
  return `${percent(share.low)} to ${percent(share.high)}`;
}
