// kiln-embed and transformers.js in one browser, one after the other, on the same texts and weights.
// By tests/browser/bench.sh.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createRequire } from "node:module";
import { parseArgs } from "node:util";
import { pageMemory } from "../memory.mjs";
import { packages, serve } from "../server.mjs";

const { values: options } = parseArgs({
  options: {
    texts: { type: "string" }, models: { type: "string" }, peer: { type: "string" }, pkg: { type: "string" },
    playwright: { type: "string" }, chromium: { type: "string" }, batch: { type: "string", default: "16" },
    seconds: { type: "string", default: "8" }, cores: { type: "string", default: "1" }, workers: { type: "boolean", default: false }, webgpu: { type: "boolean", default: false }, json: { type: "boolean", default: false },
  },
});
const { chromium } = createRequire(`${options.playwright}/`)("playwright-core");
const texts = JSON.parse(readFileSync(options.texts));
const peer = join(options.peer, "node_modules");
const server = await serve({
  page: import.meta.dirname, ...packages(options.pkg), models: options.models, peer: join(peer, "@huggingface/transformers"), ort: join(peer, "onnxruntime-web/dist"),
}, { csp: false, isolated: true });
// Without a GPU, WebGPU is a software adapter: only the ratio of two such runs says something.
const gpu = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"];
const browser = await chromium.launch({
  executablePath: options.chromium, args: ["--no-sandbox", "--disable-background-networking", ...(options.webgpu ? gpu : [])],
});

const memory = await pageMemory(browser);
/** In megabytes; NaN where it cannot be read. */
const resident = typeof memory === "string" ? () => NaN : memory;

const runs = options.webgpu
  ? [
      ["f32", "kiln-embed", "kiln", "/models/f32.kiln", "webgpu"],
      ["f32", "transformers.js", "peer", "fp32", "webgpu"],
      // Weights that stay packed in the GPU's memory; the peer has none for whole models.
      ["int8", "kiln-embed", "kiln", "/models/int8.kiln", "webgpu"],
      ["int4", "kiln-embed", "kiln", "/models/int4.kiln", "webgpu"],
    ]
  : [
      ["f32", "kiln-embed", "kiln", "/models/f32.kiln", "cpu"],
      ["f32", "transformers.js", "peer", "fp32", "wasm"],
      ["int8", "kiln-embed", "kiln", "/models/int8.kiln", "cpu"],
      ["int8", "transformers.js", "peer", "q8", "wasm"],
      ["int8, its token table in int4", "kiln-embed", "kiln", "/models/table4.kiln", "cpu"],
    ];
/** Of the peer what a row of ours alone is compared with. */
const beside = { "int8, its token table in int4": "int8" };
const cores = Number(options.cores);
const rows = [];
let exact;
for (const [precision, name, who, what, device] of runs) {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(`${server.url}/page/page.html`);
  await page.waitForFunction(() => window.measure);
  const from = server.bytes();
  const found = await page.evaluate((args) => window.measure(...args), [who, what, device, texts, Number(options.batch), Number(options.seconds), ...(who === "kiln" && options.workers ? [1, cores] : [cores, 1])]);
  exact ??= found.vectors;
  const dot = (a, b) => a.reduce((sum, x, at) => sum + x * b[at], 0);
  const cosines = found.vectors.map((vector, at) => dot(vector, exact[at]) / Math.sqrt(dot(vector, vector) * dot(exact[at], exact[at])));
  rows.push({
    precision, name, device: found.device, megabytes: (server.bytes() - from) / 1e6, firstVectorMs: found.cold,
    textsPerSecond: found.rate, memory: await resident(), cosine: cosines.reduce((a, b) => a + b) / cosines.length,
  });
  await context.close();
}
await browser.close();
server.close();

if (options.json) {
  console.log(JSON.stringify(rows, undefined, 2));
} else {
  console.log("precision                     | engine          | on                             | MB moved | first vector | texts/s | memory MB | cosine to kiln f32");
  for (const row of rows) {
    console.log(`${row.precision.padEnd(29)} | ${row.name.padEnd(15)} | ${row.device.padEnd(30)} | ${row.megabytes.toFixed(1).padStart(8)} | ${row.firstVectorMs.toFixed(0).padStart(9)} ms | ${row.textsPerSecond.toFixed(2).padStart(7)} | ${row.memory.toFixed(0).padStart(9)} | ${row.cosine.toFixed(5)}`);
  }
  for (const precision of new Set(rows.map((row) => row.precision))) {
    const [ours] = rows.filter((row) => row.precision === precision);
    const theirs = rows.find((row) => row.name !== ours.name && row.precision === (beside[precision] ?? precision));
    if (!theirs) {
      console.log(`${precision}: ${(ours.textsPerSecond / rows[0].textsPerSecond).toFixed(2)}x our own f32`);
      continue;
    }
    console.log(`${precision}: ${(ours.textsPerSecond / theirs.textsPerSecond).toFixed(2)}x their throughput, ${(ours.megabytes / theirs.megabytes).toFixed(2)}x their bytes, ${(ours.firstVectorMs / theirs.firstVectorMs).toFixed(2)}x their time to the first vector, ${(ours.memory / theirs.memory).toFixed(2)}x their memory`);
  }
}
