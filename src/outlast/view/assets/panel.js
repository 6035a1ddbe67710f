// What one run makes of a sequence: its answer, the state that is read from it, its attention.

import { AttentionRows } from "./attention.js";
import { AttentionMap } from "./map.js";
import { el, key, plain } from "./dom.js";
import { colour, config, leftMargin, tokenRows } from "./theme.js";

const SAME = { right: "right", wrong: "wrong" };

export class Panel {
  /** `go` is called with the token of a click. */
  constructor({ run, seed, name, trace, error, side }, go) {
    Object.assign(this, { trace, prefix: side, go });
    const head = el("div", {});
    const state = el("div", {});
    this.element = el("article", { class: "panel traced", id: `panel-${side}` }, head);
    if (run) {
      const about = el("p", { class: "note" }, [run.model, ...run.methods].join(", "));
      head.append(el("h2", {}, `${run.label}, seed ${seed}`), about);
    }
    if (error) {
      head.append(el("p", { class: "problem", role: "alert" }, error));
      return;
    }
    for (const words of trace.notes) head.append(el("p", { class: "note" }, words));
    this.answer = el("p", { class: "answer", id: `answer-${side}`, "aria-live": "polite" });
    this.element.append(el("div", {}, el("h3", {}, "Answer"), this.answer), state);
    if (trace.read.length) state.append(...this.stateParts());
    if (trace.layers.length) {
      this.rows = new AttentionRows(run, seed, name, trace, side);
      this.map = new AttentionMap(run, seed, name, trace, side);
      this.element.append(this.rows.element, this.map.element);
    }
  }

  /** Draw what does not change from token to token; the element must be on the page. */
  draw() {
    if (!this.trace) return;
    const left = leftMargin([...this.places(), ...(this.rows?.names ?? [])]);
    if (this.strip) this.drawStates(left);
    this.rows?.draw(left);
    this.map?.draw();
  }

  /** Colours of the weights, or the head of the map, have changed. */
  restyle() {
    this.rows?.restyle();
    this.map?.draw();
  }

  step(at) {
    if (!this.trace) return;
    this.showAnswer(at);
    this.showStates(at);
    this.rows?.step(at);
    this.map?.step(at);
  }

  showAnswer(at) {
    const answer = this.trace.answers[at];
    const chance = (share) => (share === null ? "" : ` (probability ${share.toFixed(3)})`);
    if (!answer) {
      const [word, share] = this.trace.says[at] ?? ["no number", null];
      const words = `No answer is due; the model says ${word}${chance(share)}.`;
      this.answer.replaceChildren(el("span", { class: "note" }, words));
      return;
    }
    const kind = answer.right ? SAME.right : SAME.wrong;
    const part = answer.part ? ` ${answer.part}:` : "";
    const words = answer.right
      ? `✓${part} ${answer.given}${chance(answer.chance)}, as expected`
      : `✗${part} ${answer.given}${chance(answer.chance)}; expected ${answer.expected}` +
        chance(answer.expected_chance);
    const cause = this.trace.causes[at];
    const why = cause ? el("span", { class: "note cause" }, cause) : "";
    this.answer.replaceChildren(el("span", { class: `${kind}-words` }, words), why);
  }

  // ---- the state ---------------------------------------------------------------------------

  stateParts() {
    const head = ["read from", "here", "true", "right at training lengths", "right in this sequence"];
    const body = el("tbody", {});
    this.cells = this.trace.read.map((probe) => {
      const cells = { read: el("td", {}), truth: el("td", {}) };
      const known = this.trace.state.map((state, i) => [state, probe.states[i]]);
      const due = known.filter(([state]) => state !== null);
      const right = due.filter(([state, read]) => state === read).length;
      const share = (number) => `${(100 * number).toFixed(1)}\u00a0%`;
      const fitted = el("td", {}, share(probe.accuracy));
      const here = el("td", {}, due.length ? share(right / due.length) : "");
      body.append(el("tr", {}, el("th", {}, probe.place), cells.read, cells.truth, fitted, here));
      return cells;
    });
    const heads = el("tr", {}, ...head.map((words) => el("th", {}, words)));
    const table = el("table", { id: `state-${this.prefix}` }, el("thead", {}, heads), body);
    this.strip = el("div", { class: "plot rows", id: `states-${this.prefix}` });
    return [
      el("h3", {}, "State, read by a linear probe"),
      el("div", { class: "box", tabindex: 0, role: "region", "aria-label": "State" }, table),
      this.strip,
      el(
        "p",
        { class: "note" },
        "Read where a value comes in or the state is asked for. By token: ",
        key("state-right", "right"),
        key("state-wrong", "wrong"),
      ),
    ];
  }

  showStates(at) {
    this.cells?.forEach((cells, row) => {
      const state = this.trace.state[at];
      const read = this.trace.read[row].states[at];
      cells.truth.textContent = state === null ? "–" : state;
      cells.read.textContent = state === null ? "–" : `${read} ${read === state ? "✓" : "✗"}`;
      cells.read.className = state === null ? "" : read === state ? "right-words" : "wrong-words";
    });
  }

  drawStates(left) {
    const { read, state, words } = this.trace;
    const due = (cell) => words.map((_, i) => (state[i] === null ? null : cell(i)));
    const trace = {
      type: "heatmap",
      z: read.map((probe) => due((i) => Number(probe.states[i] === state[i]))),
      text: read.map((probe) =>
        due((i) => `token ${i + 1}: ${plain(words[i])}<br>read ${probe.states[i]}, true ${state[i]}`),
      ),
      x: words.map((_, i) => i + 1),
      y: this.places(),
      zmin: 0,
      zmax: 1,
      ygap: 2,
      showscale: false,
      colorscale: [[0, colour("wrong")], [1, colour("right-shade")]],
      hovertemplate: "%{text}<extra>%{y}</extra>",
      hoverongaps: false,
    };
    const shape = tokenRows({ rows: 19 * read.length, left, bottom: 26, count: words.length });
    Plotly.newPlot(this.strip, [trace], shape, config);
    this.strip.on("plotly_click", ({ points: [point] }) => this.go(point.x - 1));
  }

  /** Where states are read, in short. */
  places() {
    return this.trace.read.map((probe) =>
      probe.place.replace(/^stream before (the )?/, "before ").replace("output of ", ""),
    );
  }
}
