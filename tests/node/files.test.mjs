// What kiln-embed does in Node that it does not do in a page: files, the cache and saved indexes in folders, workers
// of a program's own; and what callers get wrong. By tests/browser.sh.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { pathToFileURL } from "node:url";
import { Worker } from "node:worker_threads";
import { lessons } from "../browser/lessons.mjs";
import { serve } from "../browser/server.mjs";
import { cosine, native, texts } from "../browser/vectors.mjs";

const { KILN_PKG, KILN_MODELS } = process.env;
const entry = pathToFileURL(join(KILN_PKG, "node/index.js")).href;
const { Embedder, Index, clearCache } = await import(entry);
const { default: training } = await import(pathToFileURL(join(`${KILN_PKG}-train`, "index.js")).href);
const { default: webgpu } = await import(pathToFileURL(join(`${KILN_PKG}-webgpu`, "index.js")).href);

const mini = join(KILN_MODELS, "mini.kiln");
const [expected] = native("native-mini.jsonl");
const [boat] = native("native.jsonl");

let folder, server;
before(async () => (server = await serve({ models: KILN_MODELS })));
after(() => server.close());
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "kiln-files-"));
  process.env.XDG_CACHE_HOME = join(folder, "cache");
  process.env.XDG_DATA_HOME = join(folder, "data");
});
afterEach(() => {
  server.mend();
  rmSync(folder, { recursive: true, force: true });
});

const OPTIONS = { threads: 1, workers: 1 };
async function vector(source, options = {}) {
  const model = await Embedder.load(source, { ...OPTIONS, ...options });
  try {
    return await model.embed(texts[0]);
  } finally {
    model.dispose();
  }
}
const isNative = async (found, to = expected, least = 0.9999) => assert.ok(cosine(await found, to) > least, `${cosine(await found, to)}`);
/** What is kept in the cache's folder. */
const kept = () => {
  try {
    return readdirSync(join(folder, "cache/kiln-embed/kiln-embed-1")).sort();
  } catch {
    return [];
  }
};

test("a model is a path, an address, a File or bytes", async () => {
  const odd = join(folder, "Wörter & 100% #1?.kiln");
  copyFileSync(mini, odd);
  for (const source of [mini, relative(process.cwd(), mini), pathToFileURL(mini), pathToFileURL(mini).href, odd, new Uint8Array(readFileSync(mini)), new File([readFileSync(mini)], "mini.kiln"), `${server.url}/models/mini.kiln`]) {
    await isNative(vector(source));
  }
  symlinkSync(join(KILN_MODELS, "plain"), join(folder, "link"));
  for (const source of [join(KILN_MODELS, "folder"), join(KILN_MODELS, "plain") + "/", pathToFileURL(join(KILN_MODELS, "plain")), join(folder, "link"), `${server.url}/models/plain`]) {
    await isNative(vector(source), boat, 0.999);
  }
  // Files of this machine are kept nowhere else; the folder from the server is.
  await clearCache();
  await isNative(vector(mini));
  assert.deepEqual(kept(), []);
});

test("what is no model is said in a line that names it", async () => {
  mkdirSync(join(folder, "folder.kiln"));
  mkdirSync(join(folder, "empty"));
  execFileSync("mkfifo", [join(folder, "pipe.kiln")]);
  writeFileSync(join(folder, "text.kiln"), "just a text, and a longer one than any header has at its beginning");
  writeFileSync(join(folder, "none.kiln"), "");
  writeFileSync(join(folder, "cut.kiln"), readFileSync(mini).subarray(0, 100_000));
  const damaged = readFileSync(mini);
  damaged[2_000_000] ^= 1;
  writeFileSync(join(folder, "damaged.kiln"), damaged);
  for (const [source, why] of [
    [join(folder, "missing.kiln"), /missing\.kiln is not there; give the path/],
    [join(folder, "missing"), /missing.config\.json is not there; give the path/],
    [join(folder, "empty"), /config\.json is not there; give the path/],
    [join(mini, "x.kiln"), /x\.kiln is not there; give the path/],
    [join(folder, "folder.kiln"), /folder\.kiln is a folder; give/],
    [join(folder, "pipe.kiln"), /pipe\.kiln is no regular file; give/],
    [join(folder, "text.kiln"), /no \.kiln file|begins with/],
    [join(folder, "none.kiln"), /./],
    [join(folder, "cut.kiln"), /./],
    [join(folder, "damaged.kiln"), /./],
    ["data:application/json,{}", /no address that files lie under/],
    ["http://[", /is no address/],
    ["", /config\.json is not there/],
    [7, /the source is 7; give/],
    [undefined, /the source is undefined; give/],
    [["a"], /the source has "a" in it, not a File/],
  ]) {
    await assert.rejects(vector(source), (error) => {
      assert.match(error.message, why);
      assert.ok(!error.message.includes("\n"), error.message);
      return true;
    }, String(source));
  }
  // A manifest's names stay inside its folder.
  writeFileSync(join(folder, "empty/kiln.json"), JSON.stringify({ format: 1, files: { "../none.kiln": { bytes: 0 } } }));
  await assert.rejects(vector(join(folder, "empty")), /which is no path inside the model/);
});

test("downloads are kept in a folder, whole, and found without their server", async () => {
  const address = `${server.url}/models/mini.kiln`;
  await isNative(vector(address));
  const [name] = kept();
  assert.match(name, /^[0-9a-f]{64}\.kept$/);
  assert.equal(kept().length, 1);
  server.setDown(true);
  await isNative(vector(address));
  await clearCache(`${server.url}/models/other.kiln`);
  assert.equal(kept().length, 1);
  server.setDown(false);
  // Damaged, it is fetched again.
  const path = join(folder, "cache/kiln-embed/kiln-embed-1", name);
  for (const damage of [(bytes) => void (bytes[bytes.length - 5] ^= 1), (bytes) => void bytes.fill(0, 0, 20)]) {
    const bytes = readFileSync(path);
    damage(bytes);
    writeFileSync(path, bytes);
    const before = server.bytes();
    await isNative(vector(address));
    assert.ok(server.bytes() - before > 1e6);
    server.setDown(true);
    await isNative(vector(address));
    server.setDown(false);
  }
  await clearCache(address);
  assert.deepEqual(kept(), []);
  await isNative(vector(address, { cache: false }));
  assert.deepEqual(kept(), []);
});

test("a download that breaks off goes on, in the same load and in the next", async () => {
  const path = "/models/mini.kiln";
  server.cuts.set(path, 1_000_000);
  server.seen.length = 0;
  await isNative(vector(server.url + path));
  assert.match(server.seen[1].range, /^bytes=[1-9]\d*-$/);
  await clearCache();
  const stop = new AbortController();
  const onProgress = ({ loaded }) => loaded > 500_000 && stop.abort();
  await assert.rejects(vector(server.url + path, { signal: stop.signal, onProgress }), { name: "AbortError" });
  assert.equal(kept().length, 1);
  server.seen.length = 0;
  await isNative(vector(server.url + path));
  assert.match(server.seen[0].range, /^bytes=[1-9]\d*-$/);
  assert.equal(kept().length, 1);
});

test("what killed programs have left is removed, and a folder that cannot be had is done without", async (run) => {
  const cache = join(folder, "cache/kiln-embed/kiln-embed-1");
  mkdirSync(cache, { recursive: true });
  const [old, young] = ["a", "b"].map((name) => join(cache, `${name}.kept.0.part`));
  for (const path of [old, young]) writeFileSync(path, "half");
  utimesSync(old, 1000, 1000);
  await isNative(vector(`${server.url}/models/mini.kiln`));
  assert.equal(kept().length, 2);
  assert.ok(kept().includes("b.kept.0.part"));

  writeFileSync(join(folder, "file"), "");
  process.env.XDG_CACHE_HOME = join(folder, "file");
  const said = [];
  const { warn } = console;
  console.warn = (text) => said.push(text);
  run.after(() => (console.warn = warn));
  await isNative(vector(`${server.url}/models/mini.kiln?other`));
  assert.equal(said.length, 1);
  assert.match(said[0], /mini\.kiln\?other is not kept for the next time: /);
});

test("several programs may load the same model at once", async () => {
  const program = `import { Embedder } from ${JSON.stringify(entry)};
    const model = await Embedder.load(${JSON.stringify(`${server.url}/models/mini.kiln`)}, { threads: 1 });
    console.log((await model.embed("a boat")).length);`;
  const run = () => new Promise((resolve) => {
    const child = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["ignore", "pipe", "inherit"] });
    let out = "";
    child.stdout.on("data", (data) => (out += data));
    child.on("close", (code) => resolve(`${code}: ${out.trim()}`));
  });
  assert.deepEqual(await Promise.all([run(), run()]), Array(2).fill(`0: ${expected.length}`));
  assert.equal(kept().length, 1);
});

test("indexes are saved in a folder, checked when they are read, and deleted", async () => {
  const model = await Embedder.load(mini, OPTIONS);
  const index = await Index.create({ dimensions: model.dimensions, model: model.info });
  const vectors = await model.embed(texts);
  const data = (at) => ({ at, when: new Date(at), list: new Set([at]), bytes: new Uint8Array([at]) });
  await index.add(vectors.map((vector, id) => ({ id, vector, data: data(id) })));
  assert.deepEqual([await Index.names(), await Index.load("none")], [[], undefined]);
  for (const name of ["../../x", "ü/ö", "a".repeat(1000)]) await index.save(name);
  assert.deepEqual(await Index.names(), ["../../x", "a".repeat(1000), "ü/ö"]);
  const again = await Index.load("ü/ö", { model: model.info.fingerprint });
  assert.deepEqual((await again.export()).settings.weights, model.info.weights);
  const [hit] = await again.search(vectors[4], { k: 1 });
  assert.deepEqual([hit.id, hit.data], [4, data(4)]);
  await assert.rejects(Index.load("ü/ö", { model: "another" }), /has vectors of the model/);
  const path = join(folder, "data/kiln-embed/indexes");
  const files = readdirSync(path);
  assert.ok(files.every((file) => /^[0-9a-f]{64}\.index$/.test(file)));
  for (const file of files) writeFileSync(join(path, file), "no index");
  await assert.rejects(Index.load("ü/ö"), /\.index is no saved index/);
  await index.save("whole");
  assert.deepEqual(await Index.names(), ["whole"]);
  await Index.delete("whole");
  await Index.delete("ü/ö");
  await Index.delete("ü/ö");
  assert.equal(readdirSync(path).length, 2);
  for (const one of [model, index, again]) one.dispose();
});

test("threads, workers and this thread give the same bits", async () => {
  const many = Array.from({ length: 100 }, (_, at) => `${at} ${"ships and boats in the harbour ".repeat(at % 13)}`);
  const bits = (vectors) => vectors.map((vector) => new Uint32Array(vector.slice().buffer).join());
  const devices = [];
  let first;
  for (const options of [{ threads: 1, workers: 1 }, { threads: 2 }, { workers: 2 }, { worker: false }]) {
    const model = await Embedder.load(mini, options);
    devices.push(model.device);
    const found = bits(await model.embed(many));
    first ??= found;
    assert.deepEqual(found, first, JSON.stringify(options));
    model.dispose();
  }
  assert.deepEqual(devices, ["cpu (wasm, relaxed SIMD)", "cpu (wasm, relaxed SIMD, 2 threads)", "cpu (wasm, relaxed SIMD)", "cpu (wasm, relaxed SIMD)"]);
});

test("a model is taught by the add-on's builds, from its files", async () => {
  const { pairs } = lessons(12);
  const found = [];
  for (const options of [{ threads: 1 }, { threads: 2 }, { worker: false }]) {
    // There is no GPU to try.
    const model = await Embedder.load(mini, { ...options, webgpu, weights: "f32" });
    const trainer = await model.trainer({ training, kind: "lora", rank: 4 });
    const losses = [];
    const { adapter, kept } = await trainer.fit({ pairs, steps: 3, batchSize: 6, onProgress: ({ loss }) => loss !== undefined && losses.push(loss) });
    await model.addAdapter("taught", adapter);
    await model.setAdapter("taught");
    found.push({ device: trainer.device, kept, losses, length: (await model.embed("a boat")).length, on: model.device });
    for (const one of [trainer, model]) one.dispose();
  }
  const [one, two, here] = found;
  assert.deepEqual([one.device, two.device, here.device], ["cpu (wasm, SIMD)", "cpu (wasm, relaxed SIMD, 2 threads)", "cpu (wasm, SIMD)"]);
  for (const { kept, length, losses, on } of found) {
    assert.deepEqual([kept, length, losses.length], [true, expected.length, 3]);
    assert.match(on, /^cpu/);
    losses.forEach((loss, at) => assert.ok(Math.abs(loss - one.losses[at]) < 1e-4, `${losses} ${one.losses}`));
  }
});

test("in a worker of the program's own, and by require", async () => {
  const program = `import { parentPort } from "node:worker_threads";
    import { Embedder } from ${JSON.stringify(entry)};
    const model = await Embedder.load(${JSON.stringify(mini)}, { worker: false });
    parentPort.postMessage(await model.embed(${JSON.stringify(texts[0])}));`;
  const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(program)}`));
  const ended = once(worker, "exit");
  await isNative(new Promise((resolve, reject) => worker.once("message", resolve).once("error", reject)));
  // By itself, with the threads that it has.
  assert.deepEqual(await ended, [0]);
  const required = `const { Embedder } = require(${JSON.stringify(join(KILN_PKG, "node/index.js"))});
    Embedder.load(${JSON.stringify(mini)}).then((model) => model.embed("a boat")).then(({ length }) => console.log(length));`;
  assert.equal(execFileSync(process.execPath, ["-e", required], { encoding: "utf8" }), `${expected.length}\n`);
});

test("what callers get wrong is said, and changes nothing", async () => {
  const model = await Embedder.load(mini, OPTIONS);
  const said = (run) => run.then(() => "it ran", ({ name, message }) => `${name}: ${message}`);
  assert.equal(await said(model.embed(["a", 7])), "TypeError: texts[1] is 7, not a string");
  assert.equal(await said(model.embed(new Float32Array(2))), "TypeError: texts[0] is 0, not a string");
  assert.equal(await said(model.embed(undefined)), "TypeError: texts is undefined, neither a string nor a list of strings");
  assert.equal(await said(model.embed("a", { dimensions: 1e9 })), `RangeError: 1000000000 dimensions asked of a model that gives ${model.dimensions}`);
  assert.deepEqual(await model.embed([]), []);
  const [half, mark] = await model.embed(["a \ud83d boat", "a \ufffd boat"]);
  assert.deepEqual(half, mark);
  const index = await Index.create({ dimensions: model.dimensions });
  assert.deepEqual(await index.search(half), []);
  assert.equal(await said(index.add([{ id: 1, vector: ["1"] }])), `RangeError: the vector of 1 has 1 dimensions, the index has ${model.dimensions}`);
  assert.equal(await said(index.add([{ id: 1, vector: Array(model.dimensions).fill("1") }])), 'TypeError: the vector of 1 has "1" in place 0, not a number');
  assert.equal(index.size, 0);
  index.dispose();
  index.dispose();
  assert.equal(await said(index.search(half)), "Error: the index is disposed");
  assert.equal(await said(index.add([{ id: 1, vector: half }])), "Error: the index is disposed");
  assert.equal(await said(index.save("x")), "Error: the index is disposed");
  assert.match(await said(model.trainer()), /^TypeError: a trainer needs the package kiln-embed-train/);
  assert.match(await said(model.trainer({ training: webgpu })), /^TypeError: training is "kiln-embed-webgpu", not the default export of kiln-embed-train/);
  assert.match(await said(Embedder.load(mini, { device: "webgpu" })), /^TypeError: device "webgpu" needs the package kiln-embed-webgpu/);
  assert.match(await said(Embedder.load(mini, { device: "webgpu", webgpu })), /^DeviceError: there is no WebGPU adapter here/);
  const late = said(model.embed(Array(200).fill("a boat")));
  model.dispose();
  assert.equal(await late, "Error: the embedder is disposed");
  assert.equal(await said(model.embed("a")), "Error: the embedder is disposed");
});
