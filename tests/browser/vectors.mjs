// Vectors that the tests compare, by tests/browser.sh.

import { readFileSync } from "node:fs";
import { join } from "node:path";

export const texts = JSON.parse(readFileSync(join(import.meta.dirname, "texts.json")));

/** The vectors of these texts as a file of `kiln embed` has them. */
export const native = (name) => readFileSync(join(process.env.KILN_MODELS, name), "utf8").trim().split("\n").map((line) => JSON.parse(line).embedding);

export const cosine = (a, b) => {
  const dot = (a, b) => a.reduce((sum, x, at) => sum + x * b[at], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
};
