// The state of the page is the part of its address after '#'. A link keeps the view.

const listeners = [];
let state = read();

function read() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** The value of a name, or a default. */
export function get(name, otherwise = "") {
  return state[name] ?? otherwise;
}

/** A list of names, or null where the address has none. */
export function list(name) {
  if (state[name] === undefined) return null;
  return state[name].split(",").filter((word) => word !== "");
}

/** Change some values; null or undefined takes a name out. `step` keeps the Back button useful. */
export function set(changes, step = false) {
  const next = changedState(changes);
  const changed = changedNames(state, next);
  if (!changed.size) return;
  state = next;
  if (step) history.replaceState(null, "", hashOf(next));
  else history.pushState(null, "", hashOf(next));
  tell(changed);
}

/** The address of the page with some values changed, for a link. */
export function href(changes) {
  return hashOf(changedState(changes));
}

function changedState(changes) {
  const next = { ...state };
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined) delete next[name];
    else next[name] = String(value);
  }
  return next;
}

function hashOf(values) {
  return "#" + new URLSearchParams(values).toString();
}

/** Call a function with the set of changed names, whenever some have changed. */
export function onChange(listener) {
  listeners.push(listener);
}

function changedNames(before, after) {
  const names = new Set([...Object.keys(before), ...Object.keys(after)]);
  return new Set([...names].filter((name) => before[name] !== after[name]));
}

function tell(changed) {
  for (const listener of listeners) listener(changed);
}

/** Tell that what a name stands for has changed: its value in the address is the same. */
export function announce(name) {
  tell(new Set([name]));
}

// Back, Forward, a link, or an address typed by hand
addEventListener("popstate", () => {
  const after = read();
  const changed = changedNames(state, after);
  state = after;
  if (changed.size) tell(changed);
});
