// The whole attention of one head, as a picture that the server made.

import * as address from "./address.js";
import { retrieves } from "./attention.js";
import { getBeside, paths } from "./data.js";
import { choice, el, key } from "./dom.js";
import { colour, config, layout } from "./theme.js";

export class AttentionMap {
  constructor(run, seed, name, trace, side) {
    Object.assign(this, { run, seed, name, trace, side });
    const heads = trace.layers.flatMap((layer, number) =>
      Array.from({ length: layer.heads }, (_, head) => [
        `${number}-${head}`,
        `${layer.name}, head ${head}${retrieves(trace, layer.name, head) ? ", retrieves" : ""}`,
      ]),
    );
    this.heads = heads.map(([value]) => value);
    this.place = el("div", { class: "plot map", id: `map-${side}` });
    const change = (map) => address.set({ map: map || null }, true);
    const options = [["", "no head"], ...heads];
    this.problem = el("p", { class: "problem", id: `map-problem-${side}` });
    this.legend = el(
      "p",
      { class: "note", id: `map-legend-${side}` },
      key("map-most", "largest weight of its row"),
      key("map-least", "near 0"),
      key("map-dropped", "dropped: exactly 0"),
    );
    this.element = el(
      "div",
      {},
      el("h3", {}, "All tokens of one head"),
      choice("Head", `head-${side}`, options, this.head(), change),
      this.place,
      this.problem,
      this.legend,
    );
    this.at = 0;
  }

  head() {
    return this.heads.includes(address.get("map")) ? address.get("map") : "";
  }

  async draw() {
    const head = this.head();
    const select = document.getElementById(`head-${this.side}`);
    if (select) select.value = head;
    this.place.classList.toggle("empty", !head);
    this.problem.textContent = "";
    this.legend.hidden = !head;
    Plotly.purge(this.place);
    if (!head) return;
    const [layer, number] = head.split("-");
    const count = this.trace.words.length;
    let answer;
    try {
      answer = await getBeside(this.trace, paths.map(this.run.id, this.seed, this.name, layer, number));
    } catch (error) {
      this.problem.textContent = error.message;
      return;
    }
    if (head !== this.head() || !this.place.isConnected) return;
    const axis = { showgrid: false, constrain: "domain" };
    const shape = layout({
      images: [
        {
          source: answer.picture,
          xref: "x",
          yref: "y",
          x: 0.5,
          y: 0.5,
          sizex: count,
          sizey: count,
          sizing: "stretch",
          layer: "below",
        },
      ],
      shapes: [this.mark()],
      xaxis: { ...axis, title: "key: the token looked at", range: [0.5, count + 0.5] },
      yaxis: { ...axis, title: "query: the token that looks", range: [count + 0.5, 0.5], scaleanchor: "x" },
    });
    const corners = { mode: "markers", x: [1, count], y: [1, count], opacity: 0, hoverinfo: "skip" };
    Plotly.newPlot(this.place, [corners], shape, config);
  }

  mark() {
    const y = this.at + 1;
    const style = { color: colour("source"), width: 1 };
    return { type: "line", x0: 0.5, x1: this.trace.words.length + 0.5, y0: y, y1: y, line: style };
  }

  step(at) {
    this.at = at;
    if (!this.head() || !this.place.layout) return;
    clearTimeout(this.later); // the mark may lag: a redraw of the picture is slow
    this.later = setTimeout(() => {
      if (this.place.isConnected && this.head())
        Plotly.relayout(this.place, { "shapes[0].y0": this.at + 1, "shapes[0].y1": this.at + 1 });
    }, 120);
  }
}
