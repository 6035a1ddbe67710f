// Which runs, seeds and sequences this page has, and in which words it says that one is missing.

import * as address from "./address.js";
import { chosen } from "./chooser.js";

const NOT_HERE = "not in this bundle; 'outlast view' computes it.";

/** Runs that can be read. */
export function readable(catalogue) {
  return catalogue.runs.filter((run) => !run.problem);
}

/** The options of a list of runs. */
export function runOptions(catalogue) {
  return readable(catalogue).map((run) => [run.id, run.study ? `${run.study}: ${run.label}` : run.label]);
}

/** The run that the address names; without one the first that is trained, if possible of those on the
 * curves. `problem` says why none. */
export function findRun(catalogue, name) {
  const id = address.get(name);
  const runs = readable(catalogue);
  if (!id) {
    const drawn = new Set(chosen(catalogue.runs));
    const trained = runs.filter((run) => run.trained);
    return { run: trained.find((run) => drawn.has(run.id)) ?? trained[0] ?? runs[0] };
  }
  const run = catalogue.runs.find((each) => each.id === id);
  if (!run) return { problem: noRun(id) };
  return run.problem ? { problem: run.problem } : { run };
}

export function noRun(id) {
  return `There is no run ${id} on this page.`;
}

/** The seeds whose sequences can be shown: a bundle has those that were computed for it. */
export function seedsOf(catalogue, run) {
  return catalogue.live ? run.seeds : (catalogue.seeds[run.id] ?? []);
}

/** The seed that the address names, or the first; a text that is no number is returned as it is. */
export function seedOf(run, name) {
  const text = address.get(name) || run.seeds[0];
  return /^\d+$/.test(text) ? Number(text) : text;
}

/** Why a seed of a run cannot be shown; empty if it can. */
export function seedProblem(catalogue, run, seed) {
  if (!run.seeds.includes(seed)) return `There is no seed ${seed} of this run.`;
  if (!catalogue.live && !run.trained) return "This run had no checkpoint when the bundle was made.";
  return seedsOf(catalogue, run).includes(seed) ? "" : `Seed ${seed} is ${NOT_HERE}`;
}

/** The names of the sequences of a run that a bundle has: those asked for, then those of examples. */
export function bundledSequences(catalogue, run) {
  return [...(catalogue.sequences[run.id] ?? []), ...(catalogue.examples[run.id]?.sequences ?? [])];
}

/** Why a sequence of a run cannot be shown, as far as it is known here; empty if it can. */
export function sequenceProblem(catalogue, run, name) {
  if (catalogue.live || bundledSequences(catalogue, run).includes(name)) return "";
  return `This sequence is ${NOT_HERE}`;
}

/** Of some lengths, those whose examples of a cause can be listed. */
export function listedLengths(catalogue, run, lengths) {
  if (catalogue.live) return lengths;
  return lengths.filter((length) => catalogue.examples[run.id]?.lengths.includes(length));
}
