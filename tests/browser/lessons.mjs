// Lessons for the tests of teaching, and the run of `kiln train` that a page's is compared with.

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const { KILN_MODELS, KILN_NATIVE } = process.env;

const THINGS = [
  "a kettle for the stove", "a rope for climbing", "ink for fountain pens", "a lamp with a clip", "a saw for branches", "oil for hinges",
  "a brush for bottles", "a tent for two", "a scale for letters", "wax for skis", "a jar for honey", "a hook for coats",
];
const NAMES = ["Veltra", "Sombo", "Quill", "Nixa", "Brado", "Mervin", "Tollo", "Ganda", "Pirro", "Zafir", "Olmek", "Duvet"];

/** Words of a shop's own, which no model knows. */
export function lessons(count) {
  const pairs = [];
  const negatives = [];
  for (let at = 0; at < count; at++) {
    const [thing, series] = [at % THINGS.length, Math.floor(at / THINGS.length)];
    const query = `${THINGS[thing]} of series ${series}`;
    pairs.push({ query, text: `${NAMES[thing]} ${series}` });
    negatives.push({ query, text: `${NAMES[(thing + 5) % NAMES.length]} ${series}` });
  }
  return { pairs, negatives };
}

/** Things of eight colours, asked for by made-up names, of which no model knows what they mean. */
export function named() {
  const colours = ["red", "green", "blue", "yellow", "black", "white", "grey", "brown"];
  const syllables = ["zor", "gle", "bli", "vak", "mun", "tro", "fep", "qui", "dax", "lum", "ska", "wib"];
  const things = THINGS.map((thing, at) => [thing, syllables[(at * 5 + 1) % 12]]);
  return things.flatMap(([thing, name]) => colours.map((colour, at) => ({ query: `${name}${syllables[(at + 3) % 12]}`, text: `${thing}, ${colour}` })));
}

/** What each line of a file says. */
const lines = (path) => readFileSync(path, "utf8").trim().split("\n").map((line) => JSON.parse(line));

/**
 * kiln-mini in f32, taught natively with rank 4 and seed 3: its losses, the folder of the run, and `vectors(texts)` with
 * the adapters.
 */
export function trainedNatively({ pairs, negatives }, { steps, batchSize, learningRate }) {
  const folder = mkdtempSync(join(tmpdir(), "kiln-lessons-"));
  const rows = pairs.map(({ query, text }, at) => JSON.stringify({ query, pos: [text], neg: [negatives[at].text] }));
  writeFileSync(join(folder, "lessons.jsonl"), rows.join("\n"));
  writeFileSync(
    join(folder, "recipe.toml"),
    `name = "lessons"
seed = 3
[model]
base = ${JSON.stringify(join(KILN_MODELS, "mini.kiln"))}
adapters_alone = true
lora = { rank = 4, alpha = 16.0, dropout = 0.0, targets = ["all-linear"] }
[[stage]]
name = "lessons"
data = ["lessons.jsonl"]
steps = ${steps}
batch_size = ${batchSize}
lr = ${learningRate}
warmup = ${Math.floor(steps / 10)}
hard_negatives = 1
curriculum = "sampled"
loss = { temperature = 0.05 }
`,
  );
  const run = join(folder, "run");
  const kiln = (...args) => execFileSync(KILN_NATIVE, [...args, "--quiet", "--device", "cpu"], { stdio: ["ignore", "ignore", "inherit"] });
  kiln("train", "--recipe", join(folder, "recipe.toml"), "--output", run);
  const vectors = (texts) => {
    const [input, output] = ["texts.jsonl", "vectors.jsonl"].map((name) => join(folder, name));
    writeFileSync(input, texts.map((text) => JSON.stringify({ text })).join("\n"));
    kiln("embed", "--model", join(run, "model"), "--input", input, "--output", output);
    return lines(output).map(({ embedding }) => embedding);
  };
  return { run, losses: lines(join(run, "metrics.jsonl")).map(({ loss }) => loss), vectors };
}
