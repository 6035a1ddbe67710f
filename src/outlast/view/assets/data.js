// What the server, or the files of a bundle, say.

const asked = new Map();
let live = true; // whether a server computes what is asked for; a bundle has its files alone
const MOST_KEPT = 300;
// What a model makes of a sequence stays. Curves and analyses may be written while the page is open.
const KEPT = /^data\/(sequence|attention)\//;

/** The JSON under a path; an Error carries the server's message. */
export function get(path) {
  if (!KEPT.test(path)) return load(path);
  if (!asked.has(path)) {
    const answer = load(path);
    answer.catch(() => asked.delete(path)); // so that it can be asked for again
    asked.set(path, answer);
    if (asked.size > MOST_KEPT) asked.delete(asked.keys().next().value);
  }
  return asked.get(path);
}

async function load(path) {
  let reply;
  try {
    reply = await fetch(path, { credentials: "omit" });
  } catch {
    throw new Error("No answer: is 'outlast view' still running?");
  }
  if (!reply.ok) throw new Error(await refusal(reply, path));
  const values = await reply.json();
  if (path === paths.runs()) live = values.live;
  return values;
}

/** Why there is no answer. A bundle may be behind any server, whose words say nothing. */
export async function refusal(reply, path) {
  if (!live) return `${path.split("/")[1]}: not in this bundle; 'outlast view' computes it`;
  const kind = reply.headers.get("Content-Type") ?? "";
  if (kind.includes("json")) return (await reply.json()).error;
  return kind.includes("text/plain") ? reply.text() : `No answer: HTTP ${reply.status}`;
}

const part = encodeURIComponent;
export const paths = {
  runs: () => "data/runs.json",
  run: (id) => `data/run/${part(id)}.json`,
  anatomy: (id) => `data/anatomy/${part(id)}.json`,
  examples: (id, seed, length) => `data/examples/${part(id)}/${seed}/${length}.json`,
  lengths: (id) => `data/lengths/${part(id)}.json`,
  sequence: (id, seed, name) => `data/sequence/${part(id)}/${seed}/${part(name)}.json`,
  attention: (id, seed, name, number) =>
    `data/attention/${part(id)}/${seed}/${part(name)}/${number}.json`,
  map: (id, seed, name, layer, head) =>
    `data/map/${part(id)}/${seed}/${part(name)}/${layer}-${head}.png`,
};

/** Numbers from base64 of 16-bit integers: a value is its integer times `scale`. */
export function decode(text, scale) {
  const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const integers = new Int16Array(bytes.buffer);
  return Float32Array.from(integers, (value) => value * scale);
}
