// What the server, or the files of a bundle, say.

const kept = new Map();
const listeners = [];
let live = true; // whether a server computes what is asked for; a bundle has its files alone
const MOST_KEPT = 300;

/** The attention under a path, of the model that made a trace. It stays as long as the model is the same. */
export function getBeside(trace, path) {
  const name = `${trace.checkpoint} ${path}`;
  if (!kept.has(name)) {
    const answer = get(path).then((values) => {
      if (values.checkpoint === trace.checkpoint) return values;
      for (const listener of listeners) listener();
      throw new Error("This run was trained further. Computing …");
    });
    answer.catch(() => kept.delete(name)); // so that it can be asked for again
    kept.set(name, answer);
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }
  return kept.get(name);
}

/** Call a function when an answer is of a newer checkpoint than the trace that is shown. */
export function onNewerCheckpoint(listener) {
  listeners.push(listener);
}

/** The JSON under a path; an Error carries the server's message. */
export async function get(path) {
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
async function refusal(reply, path) {
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
    `data/map/${part(id)}/${seed}/${part(name)}/${layer}-${head}.json`,
};

/** Numbers from base64 of 16-bit integers: a value is its integer times `scale`. */
export function decode(text, scale) {
  const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const integers = new Int16Array(bytes.buffer);
  return Float32Array.from(integers, (value) => value * scale);
}
