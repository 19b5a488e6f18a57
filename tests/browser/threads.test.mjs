// kiln-embed with threads, in pages that are isolated, by tests/browser.sh.

import assert from "node:assert/strict";
import { test } from "node:test";
import { openKiln, withPage } from "./browser.mjs";
import { lessons } from "./lessons.mjs";
import { pageMemory } from "./memory.mjs";
import { packages } from "./server.mjs";
import { cosine, native, texts } from "./vectors.mjs";

const { KILN_MODELS } = process.env;
const MODEL = "/models/model.kiln";

let browser, server, page, warnings;

withPage({ roots: { page: import.meta.dirname, ...packages(), models: KILN_MODELS }, isolated: true }, async (begun) => {
  ({ browser, server, page } = begun);
  warnings = [];
  page.on("pageerror", (error) => assert.fail(`the page threw ${error}`));
  page.on("console", (message) => message.type() === "warning" && warnings.push(message.text()));
  await openKiln(page, server);
});

const embed = (source, options, given = texts) =>
  page.evaluate(
    async ([source, options, texts]) => {
      const model = await window.kiln.Embedder.load(source, { device: "cpu", ...options });
      const vectors = (await model.embed(texts, { batchTokens: 1024 })).map((vector) => [...vector]);
      model.dispose();
      return { info: model.info, vectors };
    },
    [source, options, given],
  );
const least = (vectors, to) => Math.min(...vectors.map((vector, at) => cosine(vector, to[at])));

for (const [file, known] of [["model", "native"], ["f32", "native-f32"], ["mini", "native-mini"]]) {
  test(`vectors of several threads are the native ones: ${file}`, async () => {
    const { info, vectors } = await embed(`/models/${file}.kiln`, { threads: 3 });
    assert.equal(info.device, "cpu (wasm, relaxed SIMD, 3 threads)");
    assert.equal(info.threads, 3);
    assert.ok(least(vectors, native(`${known}.jsonl`)) > 0.999, `${least(vectors, native(`${known}.jsonl`))}`);
    // In whatever order parts are computed, each is computed alike.
    const again = await embed(`/models/${file}.kiln`, { threads: 2 });
    assert.deepEqual(again.vectors, vectors);
    assert.deepEqual(warnings, []);
  });
}

test("as many threads as cores, unless told otherwise or several workers compute", async () => {
  const cores = await page.evaluate(() => navigator.hardwareConcurrency);
  assert.equal((await embed(MODEL, {})).info.threads, Math.min(cores, 8));
  assert.equal((await embed(MODEL, { workers: 2 })).info.device, "cpu (wasm, relaxed SIMD)");
  assert.equal((await embed(MODEL, { worker: false })).info.threads, 1);
  assert.equal((await embed(MODEL, { threads: 1 })).info.threads, 1);
  await assert.rejects(embed(MODEL, { threads: 0.5 }), /threads is 0\.5, neither/);
});

test("a page's own module worker computes, and teaches, with threads of its own", async () => {
  const given = { url: "/models/mini.kiln", texts, options: { worker: false, threads: 2 }, lessons: lessons(8) };
  const { vectors, device, taught, error } = await page.evaluate((given) => window.inOwnWorker(given), given);
  assert.equal(error, undefined);
  assert.equal(device, "cpu (wasm, relaxed SIMD, 2 threads)");
  assert.deepEqual(taught, { steps: 1, device });
  assert.ok(least(vectors, native("native-mini.jsonl")) > 0.999);
});

test("long texts, aborts, an index and a lens, while threads compute", async () => {
  const found = await page.evaluate(async (url) => {
    const model = await window.kiln.Embedder.load(url, { threads: 2, device: "cpu" });
    const one = await window.kiln.Embedder.load(url, { threads: 1, device: "cpu" });
    const long = Array.from({ length: 40 }, (_, at) => `${at} ${"the harbour is closed because of the storm ".repeat(1 + (at % 40))}`);
    const options = { batchTokens: 512 };
    const [many, few] = [await model.embed(long, options), await one.embed(long, options)];
    const furthest = Math.max(...many.map((vector, at) => Math.max(...vector.map((x, i) => Math.abs(x - few[at][i])))));
    const stop = new AbortController();
    const onProgress = () => stop.abort();
    const aborted = await model.embed([...long, ...long], { signal: stop.signal, onProgress }).then(() => "it ended", (error) => error.name);
    const index = await window.kiln.Index.create({ dimensions: model.dimensions });
    await index.add(many.map((vector, id) => ({ id, vector })));
    const [hit] = await index.search(few[7], { k: 1 });
    const lens = await model.lens("The old lighthouse");
    index.dispose();
    return { furthest, aborted, hit: hit.id, heads: lens.heads.length };
  }, MODEL);
  // Both builds compute the same batches alike.
  assert.equal(found.furthest, 0);
  assert.deepEqual([found.aborted, found.hit], ["AbortError", 7]);
  assert.ok(found.heads > 3);
});

test("several threads teach what one does", async () => {
  const taught = (threads) =>
    page.evaluate(
      async ([given, threads]) => {
        const model = await window.kiln.Embedder.load("/models/mini.kiln", { threads, device: "cpu", weights: "f32" });
        const trainer = await model.trainer({ training: window.training, kind: "lora", rank: 4, seed: 3 });
        const losses = [];
        const onProgress = ({ loss }) => loss !== undefined && losses.push(loss);
        await trainer.fit({ ...given, steps: 4, batchSize: 8, learningRate: 1e-3, holdBack: 0, onProgress });
        const { device } = trainer;
        trainer.dispose();
        model.dispose();
        return { device, losses };
      },
      [lessons(24), threads],
    );
  const [one, several] = [await taught(1), await taught(2)];
  assert.deepEqual([one.device, several.device], ["cpu (wasm, SIMD)", "cpu (wasm, relaxed SIMD, 2 threads)"]);
  assert.deepEqual(warnings, []);
  // Relaxed SIMD rounds once where a product is added.
  assert.equal(several.losses.length, 4);
  for (const [at, loss] of several.losses.entries()) assert.ok(Math.abs(loss - one.losses[at]) < 1e-4, `${one.losses} ${several.losses}`);
});

test("where threads cannot be had one computes, and that is said", async () => {
  server.missing.add("/pkg/thread.js");
  const { info, vectors } = await embed(MODEL, { threads: 2 });
  assert.equal(info.device, "cpu (wasm, relaxed SIMD)");
  assert.ok(least(vectors, native("native.jsonl")) > 0.999);
  assert.match(warnings.join("\n"), /threads cannot be had: .*relaxed build is used/);
});

test("where a thread never begins one computes, and that is said", async () => {
  server.answers.set("/pkg/thread.js", () => {});
  assert.equal((await embed(MODEL, { threads: 2 })).info.device, "cpu (wasm, relaxed SIMD)");
  assert.match(warnings.join("\n"), /threads cannot be had: a thread has not begun within 15 s; the relaxed build is used/);
});

test("where the build that trains with threads is not served, the one without teaches, and that is said", async () => {
  server.missing.add("/pkg-train/train-threads/kiln_wasm.js");
  const device = await page.evaluate(async () => {
    const model = await window.kiln.Embedder.load("/models/mini.kiln", { threads: 2, device: "cpu" });
    const trainer = await model.trainer({ training: window.training });
    for (const one of [model, trainer]) one.dispose();
    return trainer.device;
  });
  assert.equal(device, "cpu (wasm, SIMD)");
  assert.match(warnings.join("\n"), /threads cannot be had: .*train-threads\/kiln_wasm\.js; the train build is used/);
});

test("a thread that dies ends the run that waits for it, and that is said", async () => {
  const dying = `import init from "./threads/kiln_wasm.js";
    onmessage = async ({ data: { shared: [module_or_path, memory], port } }) => {
      await init({ module_or_path, memory });
      postMessage(undefined);
      setTimeout(() => port.postMessage("RuntimeError: unreachable"), 1000);
    };`;
  server.answers.set("/pkg/thread.js", (request, response) => {
    response.writeHead(200, { "content-type": "text/javascript", "cross-origin-embedder-policy": "require-corp" }).end(dying);
  });
  // The model's own test waits for threads that compute nothing.
  await assert.rejects(embed(MODEL, { threads: 2 }), /the worker of kiln-embed failed: a thread of it ended: RuntimeError: unreachable; load the model/);
  server.mend();
  assert.equal((await embed(MODEL, { threads: 1 })).info.threads, 1);
});

test("threads end with their model", async (run) => {
  const resident = await pageMemory(browser);
  if (typeof resident === "string") return run.skip(resident);
  const again = async (times) => {
    for (let time = 0; time < times; time++) await embed(MODEL, { threads: 2 }, ["a boat"]);
  };
  await again(5);
  const early = await resident();
  await again(20);
  let late = await resident();
  // The memory that ended workers shared is given back some seconds later.
  for (let waited = 0; late >= early + 150 && waited < 20; waited++) {
    await page.waitForTimeout(1000);
    late = await resident();
  }
  run.diagnostic(`${early.toFixed(0)} MB after 5 loads, ${late.toFixed(0)} MB after 25`);
  assert.ok(late < early + 150, `${early} MB after 5 loads, ${late} MB after 25`);
});
