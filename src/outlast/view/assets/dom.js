// Short ways to build the page. Text from files always goes in as text, never as markup.

/** An element: el("p", {class: "note"}, "words", child). A value that is a function listens. */
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A labelled select; options are [value, words] pairs. */
export function choice(words, id, options, value, change) {
  const select = el("select", { id, change: () => change(select.value) });
  for (const [option, label] of options) select.append(el("option", { value: option }, label));
  select.value = value;
  return el("label", { class: "field" }, el("span", {}, words), select);
}

/** A labelled checkbox. */
export function check(words, id, checked, change) {
  const box = el("input", { id, type: "checkbox", change: () => change(box.checked) });
  box.checked = checked;
  return el("label", { class: "check" }, box, el("span", {}, words));
}

/** A button. */
export function button(words, id, click, more = {}) {
  return el("button", { id, type: "button", click, ...more }, words);
}

/** A sample of a colour with what it stands for. */
export function key(kind, words) {
  return el("span", { class: "key" }, el("i", { class: kind }), words);
}

/** Plotly reads some markup in its texts; this keeps a text as it is. */
export function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

/** The first of some names, and how many more there are. */
export function firstOf(names) {
  const more = names.length - NAMED;
  const first = names.slice(0, NAMED).join("; ");
  return more > 0 ? `${first} and ${more} more` : first;
}

const NAMED = 3;

/** Seeds written as 0,2-4: a test whether one of them is meant. Nothing stands for all; null is returned
 * for what cannot be read. */
export function readSeeds(text) {
  const ranges = seedRanges(text);
  return ranges && ((seed) => !ranges.length || ranges.some(([first, last]) => first <= seed && seed <= last));
}

/** Of seeds written as 0,2-4 those that are not among some, written in the same way. */
export function missingSeeds(text, seeds) {
  const known = [...seeds].sort((one, other) => one - other);
  const missing = (seedRanges(text) ?? []).flatMap(([first, last]) => {
    const gaps = [];
    for (const seed of known.filter((each) => first <= each && each <= last)) {
      if (first < seed) gaps.push([first, seed - 1]);
      first = seed + 1;
    }
    return first <= last ? [...gaps, [first, last]] : gaps;
  });
  return missing.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(",");
}

/** Seeds written as 0,2-4 as pairs of the first and the last; null for what cannot be read. */
function seedRanges(text) {
  const ranges = [];
  for (const word of text.trim() ? text.split(",") : []) {
    const match = /^\s*(\d+)(?:\s*-\s*(\d+))?\s*$/.exec(word);
    const range = match && [Number(match[1]), Number(match[2] ?? match[1])];
    if (!range || range[1] < range[0]) return null;
    ranges.push(range);
  }
  return ranges;
}

/** A share as a percentage that is never rounded to 0 or 100 unless it is. No line breaks within it. */
export function percent(share) {
  const rounded = (100 * share).toFixed(1);
  if (share > 0 && rounded === "0.0") return "<\u00a00.1\u00a0%";
  if (share < 1 && rounded === "100.0") return ">\u00a099.9\u00a0%";
  return `${rounded}\u00a0%`;
}
