// The two figures of the curves view, drawn by Plotly. Each returns its caption, and what its table is
// made of: the traces, and how the table writes them.

import * as address from "./address.js";
import { el, firstOf, percent, plain } from "./dom.js";
import { ofSeeds, overSeeds } from "./statistics.js";
import { config, colour, faint, layout } from "./theme.js";

/** Accuracy, or bits per byte, by multiples of the training length. */
export function accuracyFigure(place, runs, options, tapped) {
  const bits = options.part.startsWith("bits: ");
  const field = bits ? "bits" : "exact";
  const part = options.part.replace("bits: ", "");
  const say = bits ? (value) => `${value.toFixed(3)} bits` : percent;
  const traces = [];
  for (const run of runs) {
    const curves = {};
    for (const row of run.rows) {
      const value = row[field]?.[part];
      if ((row.variant ?? "") !== options.variant || value === undefined) continue;
      const [xs, ys] = (curves[row.seed] ??= [[], []]);
      xs.push(row.multiple);
      ys.push(value);
    }
    traces.push(...curveTraces(run, ofSeeds(curves, options.seeds), options.each, say, "×"));
  }
  if (!traces.length)
    return nothing(place, options.nobody || "None of these runs has been tested on this.");
  const range = bits ? {} : { range: [-0.02, 1.02], tickformat: ".0%" };
  const xs = traces.flatMap((trace) => trace.x);
  const levels = bits ? [] : chanceLevels(runs, traces, part);
  const shape = layout({
    xaxis: { title: "multiples of the training length", type: "log", ...times(xs) },
    yaxis: { title: bits ? "bits per byte" : "sequences entirely right", ...range },
    shapes: [line(1, "dot"), ...levels.map(chanceMark)],
  });
  Plotly.newPlot(place, traces, shape, config);
  // whether there is a sequence of that length: a bundle has few
  const leads = (run, x) => options.leads(run, nameAt(run, x));
  const led = runs.flatMap((run) => run.rows.map((row) => leads(run, row.multiple)));
  let touch = false;
  place.addEventListener("pointerdown", (event) => (touch = event.pointerType === "touch"), true);
  place.on("plotly_click", ({ points: [point] }) => {
    const run = runs.find((each) => each.id === point.data.meta);
    if (!run) return;
    if (touch) tapped.replaceChildren(...tappedWords(run, point, leads(run, point.x)));
    else if (leads(run, point.x)) address.set(sequenceAt(run, point.x));
  });
  const spread = options.each ? "Each line is a seed." : SPREAD;
  const some = led.every(Boolean) ? "" : " if the bundle has one";
  const opens = `A click on a point opens a sequence of that length${some}, a tap shows its value.`;
  const click = led.some(Boolean) ? ` ${opens}` : "";
  const words = `Part: ${options.part}. ${spread}${chanceWords(levels)}${click}`;
  const link = (line, x) => {
    const run = runs.find((each) => each.id === line.meta);
    return leads(run, x) ? address.href(sequenceAt(run, x)) : null;
  };
  return { words, traces, table: { say: multiple, link } };
}

const SPREAD = "Lines are means over seeds, bands reach from the lowest to the highest seed.";

/** The accuracy of guessing at the training length, with the runs of which it is: [level, runs] pairs.
 * A longer sequence may ask for more answers. */
function chanceLevels(runs, traces, part) {
  const drawn = new Set(traces.map((trace) => trace.meta));
  const levels = new Map();
  for (const run of runs) {
    const level = run.chance?.[part];
    if (level === undefined || !drawn.has(run.id)) continue;
    if (!levels.has(level)) levels.set(level, []);
    levels.get(level).push(run);
  }
  return [...levels];
}

/** Where there are several levels, each names its runs. */
function chanceWords(levels) {
  if (!levels.length) return "";
  if (levels.length === 1) return ` The short line at 1 × is chance: ${percent(levels[0][0])}.`;
  const whose = (runs) => firstOf(runs.map((run) => run.label));
  const words = levels.map(([level, runs]) => `${percent(level)} (${whose(runs)})`);
  return ` The short lines at 1 × are chance: ${words.join(", ")}.`;
}

/** A short line at the training length, in the colour of its run if it is of one alone. */
function chanceMark([level, runs], _, levels) {
  const own = levels.length > 1 && runs.length === 1;
  const style = { color: own ? runs[0].look.colour : colour("ink"), width: 2 };
  return { type: "line", x0: 0.94, x1: 1.06, y0: level, y1: level, line: style };
}

function nothing(place, words) {
  Plotly.purge(place);
  place.classList.add("empty");
  return { words };
}

/** Ticks at the multiples that were measured, as many as can be read. */
function times(values) {
  const known = [...new Set(values)].sort((one, other) => one - other);
  const kept = [];
  for (const value of known)
    if (!kept.length || value / kept.at(-1) > 1.3) kept.push(value);
  return { tickvals: kept, ticktext: kept.map((value) => `${Number(value.toPrecision(3))} ×`) };
}

function multiple(value) {
  return `${Number(value.toPrecision(4))} ×`;
}

function line(x, dash) {
  const style = { color: colour("muted"), width: 1, dash };
  return { type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: style };
}

/** The state of the page that shows a sequence of a run at a multiple of its training length. */
function sequenceAt(run, times) {
  return { tab: "sequence", a: run.id, aseed: null, seq: nameAt(run, times), at: null };
}

function nameAt(run, times) {
  return `draw-${lengthAt(run, times)}-0`;
}

function lengthAt(run, times) {
  return Math.round(times * run.length);
}

/** A finger does not hover: it sees the value of a point first. */
function tappedWords(run, point, leads) {
  const value = `${point.data.name}, ${multiple(point.x)}: ${point.customdata}. `;
  if (!leads) return [value];
  const words = `open a sequence of length ${lengthAt(run, point.x)}`;
  const link = el("a", { href: address.href(sequenceAt(run, point.x)) }, words);
  return [value, link];
}

/** A loss or a quick probe over the training steps, with the switches of DAT. */
export function learningFigure(place, runs, options) {
  const [kind, name] = options.learning.split(/:(.*)/s);
  const loss = kind === "loss";
  const say = loss ? (value) => value.toPrecision(3) : percent;
  const traces = [];
  const shapes = [];
  let switches = 0;
  for (const run of runs) {
    const curves = ofSeeds((loss ? run.losses : run.probes)[name] ?? {}, options.seeds);
    const drawn = curveTraces(run, curves, options.each, say, "steps");
    traces.push(...drawn);
    const marks = drawn.length ? switchTrace(run, curves, options.each, loss) : null;
    if (!marks) continue;
    traces.push(marks);
    switches += marks.x.length;
    const mean = marks.x.reduce((sum, x) => sum + x, 0) / marks.x.length;
    const style = { color: run.look.colour, width: 1, dash: "dot" };
    shapes.push({ ...line(mean, "dot"), line: style });
  }
  if (!traces.length) return nothing(place, options.nobody || "None of these runs has such a curve.");
  // a switch outside of its curve stands at the foot of the figure
  const foot = lowest(traces);
  for (const marks of traces.filter((trace) => trace.mode === "markers"))
    marks.y = marks.y.map((y) => y ?? foot);
  const scale = loss ? { type: "log", ...decades(traces) } : { tickformat: ".0%" };
  const shape = layout({
    xaxis: { title: "training step", rangemode: "tozero" },
    yaxis: { title: loss ? `loss: ${plain(name)}` : `joint accuracy at ${plain(name)} ×`, ...scale },
    shapes,
  });
  Plotly.newPlot(place, traces, shape, config);
  const words = options.each ? "Each line is a seed." : SPREAD;
  const more = " Diamonds are the switch of DAT, one for each seed; open ones did not converge.";
  const table = { say: (step) => step.toLocaleString("en"), thin: true };
  const marked = switches ? `${more} A dotted line is their mean step.` : "";
  return { words: words + marked, traces, table };
}

function lowest(traces) {
  let low = Infinity;
  for (const trace of traces)
    for (const y of trace.y) if (y !== null && y < low) low = y;
  return low;
}

/** Ticks of a logarithmic axis: powers of ten, and 2 and 5 between them if there are few. Where even
 * these may all be outside, as around a single point, they are left to Plotly. */
function decades(traces) {
  let low = Infinity;
  let high = 0;
  for (const trace of traces)
    for (const y of trace.y)
      if (y > 0) [low, high] = [Math.min(low, y), Math.max(high, y)];
  if (high < 2.5 * low) return { tickformat: "~g" };
  return { dtick: Math.log10(high / low) > 2.5 ? 1 : "D2", tickformat: "~g" };
}

/** The switch of each seed, on the mean curve or on the seed's own; `log` is whether it is drawn so. */
function switchTrace(run, curves, each, log) {
  const marks = run.events.filter(
    (event) => event.event === "switch" && String(event.seed) in curves,
  );
  if (!marks.length) return null;
  const mean = overSeeds(curves);
  const height = (mark) => {
    const [xs, ys] = each ? curves[mark.seed] : [mean.map((p) => p.x), mean.map((p) => p.mean)];
    return heightAt(xs, ys, mark.step, log);
  };
  const failed = (mark) => (mark.converged === false ? ", not converged" : "");
  return {
    x: marks.map((mark) => mark.step),
    y: marks.map(height),
    mode: "markers",
    meta: run.id,
    name: run.label,
    marker: {
      symbol: marks.map((mark) => (mark.converged === false ? "diamond-open" : "diamond")),
      size: 9,
      color: run.look.colour,
      line: { color: colour("page"), width: 1 },
    },
    text: marks.map((m) => `switch of seed ${m.seed}, step ${m.step.toLocaleString("en")}${failed(m)}`),
    hovertemplate: `${plain(run.label)}<br>%{text}<extra></extra>`,
  };
}

/** The height of a line at x; null outside of it. */
function heightAt(xs, ys, x, log) {
  const right = xs.findIndex((value) => value >= x);
  if (right < 0 || x < xs[0]) return null;
  if (xs[right] === x) return ys[right];
  const share = (x - xs[right - 1]) / (xs[right] - xs[right - 1]);
  const [low, high] = [ys[right - 1], ys[right]];
  if (low === null || high === null) return share < 0.5 ? low : high;
  return log && low > 0 && high > 0 ? low * (high / low) ** share : low + share * (high - low);
}

/** Whether a curve has one point, which no line shows. */
function isPoint(ys) {
  return ys.filter((y) => y !== null).length === 1;
}

/** The mean with its band, or a line for each seed. */
function curveTraces(run, curves, each, say, unit) {
  const at = (x) => (unit === "×" ? multiple(x) : `step ${x.toLocaleString("en")}`);
  const style = { color: run.look.colour, dash: run.look.dash };
  const few = unit === "×";
  const mode = (ys) => (few || isPoint(ys) ? "lines+markers" : "lines");
  const marker = { symbol: run.look.symbol, size: 7, color: run.look.colour };
  const template = `${plain(run.label)}<br>%{text}<extra></extra>`;
  if (each)
    return Object.entries(curves).map(([seed, [x, y]]) => ({
      meta: run.id,
      mode: mode(y),
      x,
      y,
      line: { ...style, width: 1.3 },
      marker: { ...marker, size: 4 },
      name: `${run.label}, seed ${seed}`,
      customdata: y.map((value) => (value === null ? "" : say(value))),
      text: x.map((value, i) => (y[i] === null ? "" : `seed ${seed}, ${at(value)}: ${say(y[i])}`)),
      hovertemplate: template,
    }));
  const points = overSeeds(curves);
  if (!points.length) return [];
  const x = points.map((point) => point.x);
  const band = {
    x: [...x, ...x.toReversed()],
    y: [...points.map((p) => p.high), ...points.toReversed().map((p) => p.low)],
    fill: "toself",
    fillcolor: faint(run.look.colour, run.shade),
    line: { width: 0 },
    mode: "lines",
    hoverinfo: "skip",
    meta: run.id,
  };
  const seeds = (point) => (point.count === 1 ? "1 seed" : `${point.count} seeds`);
  const short = (p) => (p.count === 1 ? "" : ` (${say(p.low)} to ${say(p.high)})`);
  const reach = (p) => (p.count === 1 ? "" : `<br>lowest ${say(p.low)}, highest ${say(p.high)}`);
  const means = points.map((point) => point.mean);
  const mean = {
    meta: run.id,
    mode: mode(means),
    x,
    y: means,
    line: { ...style, width: 2.2 },
    marker,
    name: run.label,
    customdata: points.map((p) => say(p.mean) + short(p)),
    text: points.map((p) => `${at(p.x)}, ${seeds(p)}: ${say(p.mean)}${reach(p)}`),
    hovertemplate: template,
  };
  return points.some((point) => point.count > 1) ? [band, mean] : [mean];
}
