// How fast lessons are learned in Node, with how much memory, whether trainers leave any behind, and how long it takes to switch
// between a model and what it was taught, in milliseconds.
//
//   node tests/browser/bench/lessons.mjs --pkg wasm/pkg --models FOLDER [--threads 1] [--cycles 50] [--switches 50]
//
// FOLDER has mini.kiln and model.kiln, MiniLM in int8, as `tests/browser.sh models` makes them. The lessons are a hundred
// passages of the demo's collection, each asked for by its beginning. Each line is one run in a process of its own, whose
// memory is the most that it had in all.

import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { loadavg } from "node:os";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { pathToFileURL } from "node:url";

const { values } = parseArgs({
  options: { pkg: { type: "string" }, models: { type: "string" }, threads: { type: "string", default: "1" }, cycles: { type: "string", default: "50" }, switches: { type: "string", default: "50" }, one: { type: "string" } },
});

/** Pairs of a passage's beginning, and the passage. */
function lessons(count) {
  const text = readFileSync(join(import.meta.dirname, "../../../web-demo/collection.md"), "utf8");
  const passages = text.split(/\n+/).filter((line) => !line.startsWith("#") && line.split(" ").length > 12);
  return passages.slice(0, count).map((passage) => ({ query: passage.split(" ").slice(0, 7).join(" "), text: passage.split(" ").slice(7, 90).join(" ") }));
}

const megabytes = (bytes) => Math.round(bytes / 2 ** 20);

/** A module of the package, or of an add-on beside it. */
const module = (path) => import(pathToFileURL(resolve(values.pkg) + path).href);

async function load(file, threads) {
  const { Embedder } = await module("/node/index.js");
  return Embedder.load(join(values.models, file), { threads, workers: 1 });
}

async function trainerOf(model, kind) {
  const { default: training } = await module("-train/index.js");
  return model.trainer({ training, kind });
}

async function teach({ model: file, kind, threads, cycles }) {
  const model = await load(file, threads);
  const before = process.memoryUsage().rss;
  const after = [];
  let result;
  const started = performance.now();
  for (let cycle = 0; cycle < cycles; cycle++) {
    const trainer = await trainerOf(model, kind);
    const plan = cycles > 1 ? { pairs: lessons(16), steps: 2, batchSize: 8 } : { pairs: lessons(100), steps: 60 };
    result = await trainer.fit({ ...plan, learningRate: 5e-4, patience: 99 });
    trainer.dispose();
    if (cycles > 1) {
      // The worker's end is not waited for.
      await new Promise((resolve) => setTimeout(resolve, 50));
      after.push(megabytes(process.memoryUsage().rss));
    }
  }
  const { steps, taught, heldBack, seconds, before: first, after: last } = result;
  model.dispose();
  const line = { model: file, kind, threads, load: loadavg()[0], memory: megabytes(process.resourceUsage().maxRSS * 1024) };
  if (cycles > 1) Object.assign(line, { cycles, seconds: (performance.now() - started) / 1000, loaded: megabytes(before), after: after.filter((_, at) => at % 5 === 4) });
  else Object.assign(line, { steps, taught, heldBack, seconds, before: first?.mrr, now: last?.mrr });
  console.log(JSON.stringify(line));
}

/** Adds an adapter, and switches to it and back; a text is embedded after each switch, which would pay for what a switch puts off. */
async function change({ model: file, kind, threads, switches }) {
  const model = await load(file, threads);
  const trainer = await trainerOf(model, kind);
  const { adapter } = await trainer.fit({ pairs: lessons(16), steps: 2, batchSize: 8, holdBack: 0 });
  trainer.dispose();
  const timed = async (run) => {
    const start = performance.now();
    await run();
    return performance.now() - start;
  };
  const embed = () => model.embed("a boat on the river");
  await embed();
  const added = await timed(() => model.addAdapter("taught", adapter));
  const [switched, after, later] = [[], [], []];
  for (let at = 0; at < switches; at++) {
    switched.push(await timed(() => model.setAdapter(at % 2 === 0 ? "taught" : null)));
    after.push(await timed(embed));
    later.push(await timed(embed));
  }
  model.dispose();
  const median = (times) => times.toSorted((a, b) => a - b)[times.length >> 1];
  const line = { model: file, kind, threads, load: loadavg()[0], switches, added, switched: median(switched), slowest: Math.max(...switched), textAfter: median(after), textLater: median(later) };
  console.log(JSON.stringify(line, (_, value) => (typeof value === "number" ? Number(value.toFixed(2)) : value)));
}

if (values.one) {
  const one = JSON.parse(values.one);
  await (one.switches ? change(one) : teach(one));
} else {
  const threads = Number(values.threads);
  const runs = ["mini.kiln", "model.kiln"].flatMap((model) => ["lora", "adapter"].map((kind) => ({ model, kind, threads, cycles: 1 })));
  const cycles = Number(values.cycles);
  if (cycles > 1) runs.push(...["lora", "adapter"].map((kind) => ({ model: "mini.kiln", kind, threads, cycles })));
  const switches = Number(values.switches);
  if (switches > 0) runs.push(...["mini.kiln", "model.kiln"].flatMap((model) => ["lora", "adapter"].map((kind) => ({ model, kind, threads, switches }))));
  for (const run of runs) spawnSync(process.execPath, [import.meta.filename, "--pkg", values.pkg, "--models", values.models, "--one", JSON.stringify(run)], { stdio: "inherit" });
}
