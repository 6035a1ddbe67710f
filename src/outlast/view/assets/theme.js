// Colours of the figures, from the style sheet, so that figures follow light and dark.

/** A custom property of the style sheet. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const DASHES = ["solid", "dash", "dot", "dashdot"];
const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "triangle-down"];
const COLOURS = 7;
const LINES = COLOURS * DASHES.length;
const FAMILY = "system-ui, sans-serif";

/** How large things are: 1 at the usual size of letters, more on a projector. */
function scale() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
}

function letters() {
  return Math.round(13 * scale());
}

/** Colour, dash and marker of some runs: those of a run's place in the list, or the next free ones. */
export function looks(places) {
  const taken = new Set();
  return places.map((place, index) => {
    if (taken.size === LINES) taken.clear();
    let line = place % LINES;
    while (taken.has(line)) line = (line + 1) % LINES;
    taken.add(line);
    return {
      colour: colour(`c${line % COLOURS}`),
      dash: DASHES[Math.floor(line / COLOURS)],
      symbol: SYMBOLS[(line + Math.floor(index / LINES)) % SYMBOLS.length],
    };
  });
}

/** A colour with some transparency. */
export function faint(hex, alpha) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${red},${green},${blue},${alpha})`;
}

/** What all figures share. */
export function layout(more) {
  const axis = {
    gridcolor: colour("rule"),
    linecolor: colour("muted"),
    zeroline: false,
    tickfont: { color: colour("muted") },
    title: { font: { color: colour("muted") } },
    automargin: true,
  };
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: FAMILY, size: letters(), color: colour("ink") },
    margin: { l: 52, r: 12, t: 8, b: 44 },
    showlegend: false,
    hovermode: "closest",
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
    hoverlabel: {
      bgcolor: colour("page"),
      bordercolor: colour("muted"),
      font: { color: colour("ink"), size: letters() },
      align: "left",
    },
  };
  const { xaxis = {}, yaxis = {}, ...rest } = more;
  return {
    ...base,
    ...rest,
    xaxis: { ...axis, ...xaxis, title: { ...axis.title, text: xaxis.title ?? "" } },
    yaxis: { ...axis, ...yaxis, title: { ...axis.title, text: yaxis.title ?? "" } },
  };
}

/** The left margin, in pixels, that the longest of some labels needs. */
export function leftMargin(labels) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${letters()}px ${FAMILY}`;
  return Math.ceil(Math.max(0, ...labels.map((label) => pen.measureText(label).width))) + 12;
}

const TOP = 4; // pixels above rows of cells

/** Rows of cells, one cell for each token, `rows` and `bottom` pixels high at the usual size of letters.
 * Those of the same `left` lie below one another. */
export function tokenRows({ rows, left, bottom, count, xaxis = {} }) {
  const yaxis = { automargin: false, autorange: "reversed", fixedrange: true };
  return layout({
    height: (rows + bottom) * scale() + TOP,
    margin: { l: left, r: 8, t: TOP, b: bottom * scale() },
    xaxis: { automargin: "height", showgrid: false, range: [0.5, count + 0.5], ...xaxis },
    yaxis: { ...yaxis, showgrid: false, ticks: "" },
  });
}

export const config = { displayModeBar: false, responsive: true, doubleClick: "reset" };

/** Call a function when the system turns light or dark, if the page follows it. */
export function onSystemChange(listener) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (!document.documentElement.dataset.theme) listener();
  });
}

/** Light, dark, or as the system says. */
export function apply(name) {
  if (name === "light" || name === "dark") document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}
