// Colours of the figures, from the style sheet, so that figures follow light and dark.

/** A custom property of the style sheet. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const DASHES = ["solid", "dash", "dot", "dashdot"];
const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x"];
const COLOURS = 7;
const FONT = { family: "system-ui, sans-serif", size: 13 };

/** Colour, dash and marker of the n-th run: together they repeat after many. */
export function look(index) {
  return {
    colour: colour(`c${index % COLOURS}`),
    dash: DASHES[Math.floor(index / COLOURS) % DASHES.length],
    symbol: SYMBOLS[index % SYMBOLS.length],
  };
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
    font: { ...FONT, color: colour("ink") },
    margin: { l: 52, r: 12, t: 8, b: 44 },
    showlegend: false,
    hovermode: "closest",
    hoverlabel: {
      bgcolor: colour("page"),
      bordercolor: colour("muted"),
      font: { color: colour("ink"), size: 13 },
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
  pen.font = `${FONT.size}px ${FONT.family}`;
  return Math.ceil(Math.max(0, ...labels.map((label) => pen.measureText(label).width))) + 12;
}

/** Rows of cells, one cell for each token. Those of the same `left` lie below one another. */
export function tokenRows({ height, left, bottom, count, xaxis = {} }) {
  return layout({
    height,
    margin: { l: left, r: 8, t: 4, b: bottom },
    xaxis: { automargin: "height", showgrid: false, range: [0.5, count + 0.5], ...xaxis },
    yaxis: { automargin: false, autorange: "reversed", showgrid: false, ticks: "" },
  });
}

export const config = { displayModeBar: false, responsive: true, doubleClick: "reset" };

/** Light, dark, or as the system says. */
export function apply(name) {
  if (name === "light" || name === "dark") document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}
