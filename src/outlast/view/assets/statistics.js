// Mean and spread over seeds.

/** Mean, lowest, highest and number of some values; null without any. */
export function summary(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (!known.length) return null;
  return {
    mean: known.reduce((sum, value) => sum + value, 0) / known.length,
    low: Math.min(...known),
    high: Math.max(...known),
    count: known.length,
  };
}

/** Curves by seed, {seed: [[x...], [y...]]}, as one curve of summaries by x. */
export function overSeeds(curves) {
  const values = new Map();
  for (const [xs, ys] of Object.values(curves)) {
    xs.forEach((x, index) => {
      if (!values.has(x)) values.set(x, []);
      values.get(x).push(ys[index]);
    });
  }
  const at = [...values.keys()].sort((one, other) => one - other);
  const found = at.map((x) => ({ x, ...summary(values.get(x)) }));
  return found.filter((point) => point.count);
}

/** The curves of the seeds that a test holds for. */
export function ofSeeds(curves, wanted) {
  return Object.fromEntries(Object.entries(curves).filter(([seed]) => wanted(Number(seed))));
}
