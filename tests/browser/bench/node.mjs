// kiln-embed and transformers.js in Node, each in a process of its own, one after the other, on the same texts and
// weights. By tests/browser/bench.sh --node.

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: {
    texts: { type: "string" }, models: { type: "string" }, peer: { type: "string" }, pkg: { type: "string" },
    batch: { type: "string", default: "16" }, seconds: { type: "string", default: "8" }, cores: { type: "string", default: "1" },
    json: { type: "boolean", default: false }, measure: { type: "string" },
  },
});

async function kiln(file) {
  const { Embedder } = await import(pathToFileURL(join(options.pkg, "node/index.js")));
  const embedder = await Embedder.load(join(options.models, file), { threads: Number(options.cores), workers: 1, device: "cpu" });
  return { device: embedder.device, embed: async (texts) => (await embedder.embed(texts)).map((vector) => Array.from(vector)) };
}

async function peer(dtype) {
  const { pipeline, env } = await import(pathToFileURL(createRequire(`${options.peer}/`).resolve("@huggingface/transformers")));
  env.allowRemoteModels = false;
  env.localModelPath = options.models;
  const threads = Number(options.cores);
  const extract = await pipeline("feature-extraction", "onnx", { dtype, device: "cpu", session_options: { intraOpNumThreads: threads, interOpNumThreads: 1 } });
  return { device: `cpu (onnxruntime-node, ${threads} threads)`, embed: async (texts) => (await extract(texts, { pooling: "mean", normalize: true })).tolist() };
}

async function measure([who, what]) {
  const texts = JSON.parse(readFileSync(options.texts));
  const batch = Number(options.batch);
  const model = await { kiln, peer }[who](what);
  await model.embed([texts[0]]);
  // With what Node itself and its modules take.
  const cold = performance.now();
  const all = async () => {
    const vectors = [];
    for (let at = 0; at < texts.length; at += batch) vectors.push(...(await model.embed(texts.slice(at, at + batch))));
    return vectors;
  };
  const vectors = await all();
  let done = 0;
  const began = performance.now();
  while (performance.now() - began < Number(options.seconds) * 1000) {
    await all();
    done += texts.length;
  }
  const rate = done / ((performance.now() - began) / 1000);
  return { device: model.device, cold, rate, memory: process.resourceUsage().maxRSS / 1000, vectors };
}

if (options.measure) {
  const found = JSON.stringify(await measure(options.measure.split(":")));
  // The peer's runtime would keep the process going.
  process.stdout.write(found, () => process.exit());
} else {
  await compare();
}

async function compare() {
  const rows = [];
  let exact;
  for (const [precision, name, what] of [["f32", "kiln-embed", "kiln:f32.kiln"], ["f32", "transformers.js", "peer:fp32"], ["int8", "kiln-embed", "kiln:int8.kiln"], ["int8", "transformers.js", "peer:q8"]]) {
    const given = Object.entries(options).flatMap(([name, value]) => (name === "json" ? [] : [`--${name}`, value]));
    const found = JSON.parse(execFileSync(process.execPath, [fileURLToPath(import.meta.url), ...given, "--measure", what], { encoding: "utf8", maxBuffer: 2 ** 30 }));
    exact ??= found.vectors;
    const dot = (a, b) => a.reduce((sum, x, at) => sum + x * b[at], 0);
    const cosines = found.vectors.map((vector, at) => dot(vector, exact[at]) / Math.sqrt(dot(vector, vector) * dot(exact[at], exact[at])));
    rows.push({ precision, name, device: found.device, firstVectorMs: found.cold, textsPerSecond: found.rate, memory: found.memory, cosine: cosines.reduce((a, b) => a + b) / cosines.length });
  }
  if (options.json) {
    console.log(JSON.stringify(rows, undefined, 2));
  } else {
    console.log("precision | engine          | on                                  | first vector | texts/s | memory MB | cosine to kiln f32");
    for (const row of rows) {
      console.log(`${row.precision.padEnd(9)} | ${row.name.padEnd(15)} | ${row.device.padEnd(35)} | ${row.firstVectorMs.toFixed(0).padStart(9)} ms | ${row.textsPerSecond.toFixed(2).padStart(7)} | ${row.memory.toFixed(0).padStart(9)} | ${row.cosine.toFixed(5)}`);
    }
    for (const precision of ["f32", "int8"]) {
      const [ours, theirs] = rows.filter((row) => row.precision === precision);
      console.log(`${precision}: ${(ours.textsPerSecond / theirs.textsPerSecond).toFixed(2)}x their throughput, ${(ours.firstVectorMs / theirs.firstVectorMs).toFixed(2)}x their time to the first vector, ${(ours.memory / theirs.memory).toFixed(2)}x their memory`);
    }
  }
}
