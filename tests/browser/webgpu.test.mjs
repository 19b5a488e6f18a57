// kiln-embed on WebGPU in a real browser, on a software adapter, by tests/browser.sh.

import assert from "node:assert/strict";
import { test } from "node:test";
import { openKiln, withPage } from "./browser.mjs";
import { lessons } from "./lessons.mjs";
import { packages } from "./server.mjs";
import { cosine, native, texts } from "./vectors.mjs";

const { KILN_DEMO, KILN_MODELS } = process.env;

const MINI = "/models/mini.kiln";
/** A GPU that is emulated takes seconds a batch. */
const FEW = 4;

let server, page, warnings;

const roots = { page: import.meta.dirname, ...packages(), models: KILN_MODELS, demo: KILN_DEMO };
withPage({ roots, args: ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"] }, async (begun) => {
  ({ server, page } = begun);
  warnings = [];
  page.on("console", (message) => message.type() === "warning" && warnings.push(message.text()));
  await openKiln(page, server);
});

/** Vectors of some texts on WebGPU. */
const onGpu = (url, texts) => page.evaluate(
  async ([url, texts]) => {
    const model = await window.kiln.Embedder.load(url, { device: "webgpu", webgpu: window.webgpu });
    const vectors = await model.embed(texts);
    const result = { vectors: vectors.map((vector) => [...vector]), device: model.device };
    model.dispose();
    return result;
  },
  [url, texts],
);

for (const [name, url, file, least] of [
  ["all-MiniLM-L6-v2 in f32", "/models/f32.kiln", "native-f32.jsonl", 0.9999],
  ["kiln-mini in int4", MINI, "native-mini.jsonl", 0.999],
  ["all-MiniLM-L6-v2 in int8", "/models/model.kiln", "native.jsonl", 0.999],
]) {
  test(`vectors on WebGPU are the native ones: ${name}`, { timeout: 240_000 }, async (run) => {
    const { vectors, device } = await onGpu(url, texts.slice(0, FEW));
    assert.match(device, /^webgpu \(.*swiftshader/i);
    const expected = native(file);
    const found = vectors.map((vector, at) => cosine(vector, expected[at]));
    run.diagnostic(`least cosine ${Math.min(...found)}`);
    for (const [at, cosine] of found.entries()) assert.ok(cosine > least, `${texts[at]}: ${cosine}`);
    assert.deepEqual(warnings, []);
  });
}

test("explain, lens, aborts and progress on WebGPU", { timeout: 120_000 }, async () => {
  const found = await page.evaluate(async (url) => {
    const [gpu, cpu] = [await window.kiln.Embedder.load(url, { device: "webgpu", webgpu: window.webgpu }), await window.kiln.Embedder.load(url, { device: "cpu" })];
    const text = "a boat on the river";
    const lenses = [await gpu.lens(text), await cpu.lens(text)];
    const seen = [];
    const vectors = await gpu.embed(["one", "two", "three"], { batchTokens: 4, onProgress: ({ texts }) => seen.push(texts) });
    const abort = new AbortController();
    const run = gpu.embed(Array.from({ length: 50 }, (_, at) => `text ${at}`), { batchTokens: 4, signal: abort.signal, onProgress: () => abort.abort() });
    return {
      heads: lenses.map(({ heads }) => heads.map(({ name, cosine }) => [name, cosine])),
      attention: Math.max(...lenses[0].attention.map((x, at) => Math.abs(x - lenses[1].attention[at]))),
      why: (await gpu.explain(text)).weights, seen, count: vectors.length, aborted: await run.catch((error) => error.name), after: (await gpu.embed("again")).length,
    };
  }, MINI);
  for (const [at, [name, cosine]] of found.heads[0].entries()) {
    assert.equal(name, found.heads[1][at][0]);
    assert.ok(Math.abs(cosine - found.heads[1][at][1]) < 0.02, `${name}: ${cosine} ${found.heads[1][at][1]}`);
  }
  assert.ok(found.attention < 0.05, `${found.attention}`);
  assert.deepEqual(found.seen, [1, 2, 3]);
  assert.deepEqual([found.count, found.aborted, found.after], [3, "AbortError", 384]);
});

test("an adapter that the CPU learned is taken by WebGPU", { timeout: 240_000 }, async () => {
  const found = await page.evaluate(
    async ([url, given, texts]) => {
      const { Embedder, cosine } = window.kiln;
      const [gpu, cpu] = [await Embedder.load(url, { device: "webgpu", webgpu: window.webgpu }), await Embedder.load(url, { device: "cpu" })];
      const trainer = await cpu.trainer({ training: window.training, kind: "lora", rank: 4 });
      const { adapter } = await trainer.fit({ ...given, steps: 6, batchSize: 6, learningRate: 2e-3, holdBack: 0 });
      trainer.dispose();
      const bare = await gpu.embed(texts);
      const vectors = [];
      for (const model of [gpu, cpu]) {
        await model.addAdapter("taught", adapter);
        await model.setAdapter("taught");
        vectors.push(await model.embed(texts));
      }
      await gpu.setAdapter(null);
      const again = await gpu.embed(texts);
      const least = (one, other) => Math.min(...one.map((vector, at) => cosine(vector, other[at])));
      return { same: least(...vectors), moved: least(vectors[0], bare), back: least(again, bare), device: gpu.device };
    },
    [MINI, lessons(24), texts.slice(0, 2)],
  );
  assert.match(found.device, /^webgpu/);
  assert.ok(found.same > 0.999 && found.moved < 0.9999 && found.back > 0.99999, JSON.stringify(found));
});

test("auto leaves a software adapter aside", async () => {
  const device = await page.evaluate((url) => window.kiln.Embedder.load(url, { webgpu: window.webgpu }).then((model) => model.device), MINI);
  assert.match(device, /^cpu/);
  assert.deepEqual(warnings, []);
});

test("without the add-on auto is the CPU, in silence, and WebGPU is refused with what to install", async () => {
  const from = server.seen.length;
  const found = await page.evaluate(async (url) => {
    // The adapter passes for a real one.
    Object.defineProperty(GPUAdapterInfo.prototype, "isFallbackAdapter", { get: () => false });
    const load = (options) => window.kiln.Embedder.load(url, { worker: false, ...options });
    const said = (options) => load(options).catch((error) => `${error.name}: ${error.message}`);
    const wrong = [{}, { webgpu: window.training }, { webgpu: { ...window.webgpu, version: "9.9.9" } }];
    return { device: (await load()).device, said: await Promise.all(wrong.map((one) => said({ device: "webgpu", ...one }))) };
  }, MINI);
  assert.match(found.device, /^cpu/);
  assert.match(found.said[0], /^TypeError: device "webgpu" needs the package kiln-embed-webgpu; install it, import webgpu from "kiln-embed-webgpu", and call /);
  assert.match(found.said[1], /^TypeError: webgpu is "kiln-embed-train", not the default export of kiln-embed-webgpu; import webgpu from "kiln-embed-webgpu"$/);
  assert.match(found.said[2], /^RangeError: webgpu is kiln-embed-webgpu "9\.9\.9", and this is kiln-embed [\d.]+; install kiln-embed-webgpu@[\d.]+$/);
  assert.deepEqual([warnings, server.seen.slice(from).filter(({ path }) => path.startsWith("/pkg-webgpu/webgpu/"))], [[], []]);
});

test("auto is the CPU, with a warning, where the add-on's files are not served", async () => {
  for (const name of ["kiln_wasm.js", "kiln_wasm_bg.wasm"]) server.missing.add(`/pkg-webgpu/webgpu/${name}`);
  const device = await page.evaluate(async (url) => {
    Object.defineProperty(GPUAdapterInfo.prototype, "isFallbackAdapter", { get: () => false });
    return (await window.kiln.Embedder.load(url, { webgpu: window.webgpu, worker: false })).device;
  }, MINI);
  assert.match(device, /^cpu/);
  assert.match(warnings.join(), /kiln-embed: .*\/pkg-webgpu\/webgpu\/kiln_wasm\.js; the CPU is used/);
});

test("auto takes the faster device, and the CPU where the GPU computes wrongly", { timeout: 240_000 }, async () => {
  // The adapter passes for a real one; in this thread, where the page can be changed.
  const load = () => page.evaluate(async (url) => {
    const model = await window.kiln.Embedder.load(url, { webgpu: window.webgpu, worker: false });
    return { device: model.device, length: (await model.embed("a boat")).length };
  }, MINI);
  await page.evaluate(() => Object.defineProperty(GPUAdapterInfo.prototype, "isFallbackAdapter", { get: () => false }));
  const measured = await load();
  // An emulated GPU is never the faster one.
  assert.match(measured.device, /^cpu/);
  assert.ok(server.seen.some(({ path }) => path === "/pkg-webgpu/webgpu/kiln_wasm_bg.wasm"), "the GPU was tried");
  assert.deepEqual(warnings, []);

  await page.reload();
  await page.waitForFunction(() => window.kiln);
  await page.evaluate(() => {
    Object.defineProperty(GPUAdapterInfo.prototype, "isFallbackAdapter", { get: () => false });
    // A driver that loses what it is given.
    const { prototype } = GPUQueue;
    const write = prototype.writeBuffer;
    prototype.writeBuffer = function (buffer, at, data, ...rest) {
      const bytes = ArrayBuffer.isView(data) ? new Uint8Array(data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength)) : new Uint8Array(data.slice(0));
      if (bytes.length > 100_000) bytes.fill(0, 0, bytes.length >> 1);
      return write.call(this, buffer, at, bytes, ...rest);
    };
  });
  const fallen = await load();
  assert.match(fallen.device, /^cpu/);
  assert.match(warnings.join(), /fails the test that it carries.*the CPU is used/);
});

/** Keeps the GPU's devices of the page's own thread as `window.devices`, for a test that takes them away. */
const keepDevices = () =>
  page.evaluate(() => {
    window.devices = [];
    const { prototype } = GPUAdapter;
    const request = prototype.requestDevice;
    prototype.requestDevice = async function (...options) {
      const device = await request.apply(this, options);
      window.devices.push(device);
      return device;
    };
  });

test("a lost GPU is left for the CPU, in the midst of a run too", { timeout: 120_000 }, async () => {
  await keepDevices();
  const found = await page.evaluate(async (url) => {
    const { devices } = window;
    const model = await window.kiln.Embedder.load(url, { device: "webgpu", webgpu: window.webgpu, worker: false });
    const before = await model.embed("a boat");
    const runs = [
      model.embed(["a boat", "a longer text about a house", "three words more"], { batchTokens: 4, onProgress: () => devices.forEach((device) => device.destroy()) }),
      model.embed("a boat"),
    ];
    const [first, second] = await Promise.all(runs);
    const again = (device) => window.kiln.Embedder.load(url, { device, webgpu: window.webgpu, worker: false }).then((model) => model.device, (error) => error.message);
    return {
      again: [await again("webgpu"), await again("auto")], worker: (await window.kiln.Embedder.load(url, { device: "webgpu", webgpu: window.webgpu })).device, on: model.device, same: [window.kiln.cosine(before, first[0]), window.kiln.cosine(before, second)], count: first.length };
  }, MINI);
  assert.match(found.on, /^cpu/);
  // The thread's own GPU is gone, a worker has another.
  assert.match(found.again[0], /the GPU was lost.*reload the page to use it again/);
  assert.match(found.again[1], /^cpu/);
  assert.match(found.worker, /^webgpu/);
  assert.equal(found.count, 3);
  assert.ok(found.same.every((cosine) => cosine > 0.999), `${found.same}`);
  assert.match(warnings.join(), /the GPU was lost.*goes on on the CPU/);
});

test("a GPU that is lost while an adapter is taught stops nothing, and the CPU goes on with the adapter in use", { timeout: 240_000 }, async () => {
  await keepDevices();
  const found = await page.evaluate(
    async ([url, given, texts]) => {
      const { Embedder, cosine } = window.kiln;
      const { devices } = window;
      const model = await Embedder.load(url, { device: "webgpu", webgpu: window.webgpu, worker: false });
      const trainer = await model.trainer({ training: window.training, kind: "lora", rank: 4 });
      const plan = { ...given, batchSize: 6, learningRate: 2e-3, holdBack: 0 };
      const { adapter } = await trainer.fit({ ...plan, steps: 6 });
      const bare = await model.embed(texts);
      await model.addAdapter("taught", adapter);
      await model.setAdapter("taught");
      const before = await model.embed(texts);
      const by = model.info.fingerprint;
      let during;
      const { steps, adapter: more } = await trainer.fit({
        ...plan,
        steps: 8,
        onProgress: ({ step }) => {
          if (step < 3 || during) return;
          devices.forEach((device) => device.destroy());
          during = model.embed(texts);
        },
      });
      trainer.dispose();
      const after = await during;
      const least = (one, other) => Math.min(...one.map((vector, at) => cosine(vector, other[at])));
      const said = { on: model.device, steps, kept: more !== undefined, same: least(before, after), moved: least(bare, after), by: model.info.fingerprint === by };
      await model.setAdapter(null);
      said.back = least(bare, await model.embed(texts));
      model.dispose();
      return said;
    },
    [MINI, lessons(24), texts.slice(0, 2)],
  );
  assert.match(found.on, /^cpu/);
  assert.deepEqual([found.steps, found.kept, found.by], [8, true, true]);
  assert.ok(found.same > 0.999 && found.moved < 0.9999 && found.back > 0.999, JSON.stringify(found));
  assert.match(warnings.join(), /the GPU was lost.*goes on on the CPU/);
});

test("a core that breaks off after a wait for the GPU says so, and keeps nobody waiting", { timeout: 120_000 }, async () => {
  const found = await page.evaluate(async (url) => {
    const model = await window.kiln.Embedder.load(url, { device: "webgpu", webgpu: window.webgpu, worker: false });
    // What was computed cannot be read back, which the core takes for impossible.
    GPUBuffer.prototype.mapAsync = async () => {
      throw new DOMException("no memory", "OperationError");
    };
    const said = (run) => run.then(() => "it worked", (error) => `${error.name}: ${error.message}`);
    const runs = [said(model.embed("a boat")), said(model.lens("a boat"))];
    return [...(await Promise.all(runs)), await said(model.embed("a boat"))];
  }, MINI);
  for (const said of found) assert.match(said, /^WorkerError: kiln-embed broke off \(.*load the model, or the index, again/);
});

test("a model with too large a matrix for the adapter is refused, or left to the CPU", { timeout: 120_000 }, async () => {
  const found = await page.evaluate(async (url) => {
    for (const limit of ["maxBufferSize", "maxStorageBufferBindingSize"]) {
      Object.defineProperty(GPUSupportedLimits.prototype, limit, { get: () => 1 << 20 });
    }
    Object.defineProperty(GPUAdapterInfo.prototype, "isFallbackAdapter", { get: () => false });
    const load = (device) => window.kiln.Embedder.load(url, { device, webgpu: window.webgpu, worker: false });
    const said = await load("webgpu").catch((error) => error.message);
    const model = await load("auto");
    return { said, device: model.device, length: (await model.embed("a boat")).length };
  }, "/models/f32.kiln");
  assert.match(found.said, /^token_embedding\.weight takes 44 MB in f32, and this GPU takes tensors of 1 MB at most; .*int8 or int4.*CPU$/);
  assert.match(found.device, /^cpu/);
  assert.equal(found.length, 384);
  assert.match(warnings.join(), /takes tensors of 1 MB at most/);
});

test("without WebGPU that is said", async () => {
  await page.evaluate(() => Object.defineProperty(navigator, "gpu", { value: undefined }));
  const said = await page.evaluate((url) => window.kiln.Embedder.load(url, { device: "webgpu", webgpu: window.webgpu, worker: false }).catch((error) => error.message), MINI);
  assert.equal(said, 'there is no WebGPU adapter here; use device: "cpu"');
});

test("the demo computes on WebGPU where it is told to", { timeout: 180_000 }, async () => {
  await page.goto(`${server.url}/demo/index.html`);
  await page.locator(".notice").getByText(/passages indexed/).waitFor({ timeout: 60_000 });
  await page.getByRole("button", { name: "Empty" }).click();
  await page.getByText("0 passages, kept in this browser").waitFor();
  await page.getByRole("link", { name: "Models" }).click();
  await page.getByLabel("Compute on").selectOption("webgpu");
  await page.getByText(/kiln-mini on webgpu \(/).waitFor({ timeout: 120_000 });
  await page.getByRole("link", { name: "Search" }).click();
  await page.getByRole("button", { name: "Paste text" }).click();
  await page.getByLabel("Text to search in").fill("The harbour was closed because of the storm.");
  await page.getByRole("button", { name: "Add it" }).click();
  await page.getByText("1 passage, kept in this browser").waitFor({ timeout: 60_000 });
  await page.getByLabel("Search the collection").fill("no ships could leave");
  await page.locator(".hit .text").getByText("The harbour was closed").waitFor({ timeout: 60_000 });
  assert.deepEqual(warnings, []);
});
