// The attention of the current token: one row for each head, one cell for each key.

import * as address from "./address.js";
import { decode, getBeside, paths } from "./data.js";
import { choice, el, key, plain } from "./dom.js";
import { colour, config, tokenRows } from "./theme.js";

// A cell's z: dropped keys lie below 0, so that they have a colour of their own.
const DROPPED = -0.25;
const SHADES = {
  root: ["square root of the weight", Math.sqrt],
  linear: ["weight", (weight) => weight],
  log: ["logarithm, from 0.0001", (weight) => Math.max(0, 1 + Math.log10(weight) / 4)],
};
const ROW = 24;
const SIGN = 8; // pixels that a sign takes below the axis

/** Whether a head is one of those that look answers up. */
export function retrieves(trace, layer, head) {
  return trace.retrieving?.layer === layer && trace.retrieving.heads.includes(head);
}

function retrievingWords({ weight }) {
  return `retrieves: looks answers up, at the training length with weight ${weight.toFixed(2)} on the right token`;
}

function longest(words) {
  return words.reduce((most, word) => Math.max(most, word.length), 0);
}

export class AttentionRows {
  constructor(run, seed, name, trace, side) {
    Object.assign(this, { run, seed, name, trace, side });
    const heads = trace.layers.flatMap(({ name, heads }) =>
      Array.from({ length: heads }, (_, head) => [`${name} · ${head}`, retrieves(trace, name, head)]),
    );
    this.heads = heads.map(([name]) => name);
    this.names = heads.map(([name, marked]) => (marked ? `${name} retrieves` : name));
    this.place = el("div", { class: "plot rows attention", id: `attention-${side}` });
    this.words = el("p", { class: "note", id: `attention-words-${side}` });
    const shade = choice(
      "Colour by",
      `colour-${side}`,
      Object.entries(SHADES).map(([value, [words]]) => [value, words]),
      this.shade(),
      (value) => address.set({ colour: value }, true),
    );
    this.element = el(
      "div",
      {},
      el("h3", {}, "Attention of this token"),
      el("div", { class: "controls" }, shade),
      this.place,
      this.words,
      el(
        "p",
        { class: "note" },
        key("high", "weight 1"),
        key("low", "near 0"),
        key("dropped", "dropped: exactly 0"),
        key("later", "not read yet"),
        trace.source.some((place) => place !== null) ? "○ the token that holds the answer" : "",
        trace.retrieving ? el("span", { class: "key" }, retrievingWords(trace.retrieving)) : null,
      ),
    );
    this.shown = -1;
  }

  shade() {
    return address.get("colour") in SHADES ? address.get("colour") : "root";
  }

  /** `left` is the margin that the rows share with those of the state. */
  draw(left) {
    const { words } = this.trace;
    const text = words.map((word, i) => `token ${i + 1}: ${plain(word)}`);
    const few = SIGN * (longest(words) + 1) * words.length < 0.8 * this.place.clientWidth;
    const heat = {
      type: "heatmap",
      x: words.map((_, i) => i + 1),
      y: this.names,
      z: this.names.map(() => new Array(words.length).fill(null)),
      text: this.names.map(() => text),
      customdata: this.names.map(() => new Array(words.length).fill(null)),
      zmin: DROPPED,
      zmax: 1,
      ygap: 2,
      showscale: false,
      colorscale: [
        [0, colour("dropped")],
        [0.19, colour("dropped")],
        [0.2, colour("weight-low")],
        [1, colour("weight-high")],
      ],
      hovertemplate: "%{text}<br>weight %{customdata:.4f}<extra>%{y}</extra>",
      hoverongaps: false,
    };
    const circle = (name, width) => ({
      mode: "markers",
      x: [],
      y: [],
      hoverinfo: "skip",
      marker: { symbol: "circle-open", size: 11, color: colour(name), line: { width } },
    });
    // the halo sets the circle off from any weight below it
    const marks = [circle("page", 7), circle("source", 2)];
    const ticks = few
      ? { tickvals: heat.x, ticktext: words.map(plain), tickangle: 0, title: "" }
      : { title: "token" };
    const rows = ROW * this.names.length;
    const bottom = few ? 30 : 50;
    const shape = tokenRows({ rows, left, bottom, count: words.length, xaxis: ticks });
    this.ready = Plotly.newPlot(this.place, [heat, ...marks], shape, config);
    this.shown = -1;
  }

  restyle() {
    const select = document.getElementById(`colour-${this.side}`);
    if (select) select.value = this.shade();
    const at = this.at;
    this.shown = -1;
    if (at !== undefined) this.step(at);
  }

  async step(at) {
    this.at = at;
    const size = this.trace.queries;
    const number = Math.floor(at / size);
    const late = setTimeout(() => (this.words.textContent = "Computing …"), 150);
    let chunk;
    try {
      chunk = await this.chunk(number);
    } catch (error) {
      this.words.textContent = error.message;
      return;
    } finally {
      clearTimeout(late);
    }
    this.prefetch(number);
    if (at !== this.at || at === this.shown || !this.place.isConnected) return;
    this.shown = at;
    this.paint(at, chunk);
  }

  /** Rows of a chunk, decoded once: weights of head h and query q begin at (h * queries + q) * keys. */
  chunk(number) {
    this.chunks ??= new Map();
    if (!this.chunks.has(number)) {
      const path = paths.attention(this.run.id, this.seed, this.name, number);
      const answer = getBeside(this.trace, path).then((data) => ({
        ...data,
        layers: data.layers.map((layer) => ({
          heads: layer.heads,
          weights: layer.values ?? (layer.values = decode(layer.weights, layer.scale)),
        })),
      }));
      answer.catch(() => this.chunks.delete(number));
      this.chunks.set(number, answer);
    }
    return this.chunks.get(number);
  }

  prefetch(number) {
    const last = Math.floor((this.trace.words.length - 1) / this.trace.queries);
    for (const next of [number + 1, number - 1])
      if (next >= 0 && next <= last) this.chunk(next).catch(() => null);
  }

  paint(at, chunk) {
    const shade = SHADES[this.shade()][1];
    const count = this.trace.words.length;
    const z = [];
    const weights = [];
    let zeros = 0;
    for (const layer of chunk.layers)
      for (let head = 0; head < layer.heads; head++) {
        const begin = (head * chunk.queries + at - chunk.first) * chunk.keys;
        const row = layer.weights.subarray(begin, begin + at + 1);
        const cells = new Array(count).fill(null);
        for (let key = 0; key <= at; key++) {
          const weight = row[key];
          if (weight === 0) zeros++;
          cells[key] = weight === 0 ? DROPPED : shade(Math.abs(weight));
        }
        z.push(cells);
        weights.push(row);
      }
    const source = this.trace.source[at];
    const known = source !== null && source !== undefined;
    const x = known ? this.names.map(() => source + 1) : [];
    const y = known ? this.names : [];
    Plotly.restyle(this.place, {
      z: [z, null, null],
      customdata: [weights, null, null],
      x: [this.xs(), x, x],
      y: [this.names, y, y],
    });
    this.describe(at, weights, zeros, known ? source : null);
  }

  xs() {
    return (this.numbers ??= this.trace.words.map((_, i) => i + 1));
  }

  describe(at, weights, zeros, source) {
    const parts = [`Token ${at + 1} looks at ${at + 1} token${at ? "s" : ""}.`];
    const cells = weights.length * (at + 1);
    if (zeros) parts.push(`${((100 * zeros) / cells).toFixed(0)} % of keys are dropped.`);
    if (source !== null) {
      const on = weights.map((row) => row[source]);
      const best = on.indexOf(Math.max(...on));
      parts.push(
        `Most weight on the token that holds the answer: ${on[best].toFixed(3)} (${this.heads[best]}).`,
      );
    }
    this.words.textContent = parts.join(" ");
  }
}
