// kiln-embed in a real browser, by tests/browser.sh.

import assert from "node:assert/strict";
import { test } from "node:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { openKiln, withPage } from "./browser.mjs";
import { pageMemory } from "./memory.mjs";
import { packages } from "./server.mjs";
import { cosine, native, texts } from "./vectors.mjs";

const { KILN_PKG, KILN_MODELS } = process.env;

/** The texts' vectors, computed natively from the same file. */
const expected = native("native.jsonl");

const MODEL = "/models/model.kiln";
const modelFile = join(KILN_MODELS, "model.kiln");
const miniFile = join(KILN_MODELS, "mini.kiln");

let browser, server, page;

withPage({ roots: { page: import.meta.dirname, ...packages(), models: KILN_MODELS, wasm: join(KILN_PKG, "..") } }, async (begun) => {
  ({ browser, server, page } = begun);
  page.on("pageerror", (error) => assert.fail(`the page threw ${error}`));
  await openKiln(page, server);
});

/** All workers end, and what they compute, when the browser gets to it. */
const workersEnd = async () => {
  for (let waited = 0; page.workers().length > 0 && waited < 100; waited++) await page.waitForTimeout(100);
  assert.equal(page.workers().length, 0);
};

/** What a load says that fails. */
const failure = (source, options = {}) =>
  page.evaluate(
    ([source, options]) => window.kiln.Embedder.load(source, options).then(() => "it loaded", (error) => `${error.name}: ${error.message}`),
    [source, options],
  );

for (const worker of [true, false]) {
  test(`vectors are the native ones, ${worker ? "in a worker" : "in this thread"}`, async () => {
    const { vectors, info } = await page.evaluate(
      async ([url, texts, worker]) => {
        const model = await window.kiln.Embedder.load(url, { worker });
        const vectors = await model.embed(texts, { batchTokens: 256 });
        return { vectors: vectors.map((vector) => [...vector]), info: model.info };
      },
      [MODEL, texts, worker],
    );
    assert.equal(info.dimensions, expected[0].length);
    assert.match(info.device, /^cpu \(wasm, relaxed SIMD\)$/);
    for (const [at, vector] of vectors.entries()) {
      // The same rounded weights; sums are rounded otherwise, and activations to int8 after them.
      assert.ok(cosine(vector, expected[at]) > 0.999, `${texts[at]}: ${cosine(vector, expected[at])}`);
    }
  });
}

for (const worker of [true, false]) {
  test(`a page's own module worker gives the native vectors, ${worker ? "in a worker that it begins" : "in its own thread"}`, async () => {
    const given = { url: MODEL, texts, options: { worker } };
    const { vectors, device, error } = await page.evaluate((given) => window.inOwnWorker(given), given);
    assert.equal(error, undefined);
    assert.equal(device, "cpu (wasm, relaxed SIMD)");
    for (const [at, vector] of vectors.entries()) assert.ok(cosine(vector, expected[at]) > 0.999, `${texts[at]}: ${cosine(vector, expected[at])}`);
  });
}

test("weights are rounded as they are loaded, or computed in floating point", async () => {
  const full = native("native-f32.jsonl");
  const run = (url, weights) =>
    page.evaluate(
      async ([url, weights, texts]) => {
        const model = await window.kiln.Embedder.load(url, { weights, device: "cpu" });
        const vectors = (await model.embed(texts)).map((vector) => [...vector]);
        model.dispose();
        return { vectors, weights: model.info.weights };
      },
      [url, weights, texts],
    );
  const least = ({ vectors }, to) => Math.min(...vectors.map((vector, at) => cosine(vector, to[at])));
  const [kept, int8, int4] = [await run("/models/f32.kiln", "kept"), await run("/models/f32.kiln", "int8"), await run("/models/f32.kiln", "int4")];
  assert.deepEqual([kept.weights, int8.weights, int4.weights], ["f32", "int8:32", "int4:32"]);
  const cosines = [kept, int8, int4].map((found) => least(found, full));
  assert.ok(cosines[0] > 0.999999 && cosines[1] > 0.998 && cosines[2] > 0.93, `${cosines}`);
  assert.ok(cosines[0] > cosines[1] && cosines[1] > cosines[2], `${cosines}`);
  // What was rounded to int8 before is what a file of int8 is; sums in another order than the native ones
  // round some activations the other way.
  assert.ok(least(int8, expected) > 0.9995, `${least(int8, expected)}`);
  // A file of int8 without the rounding of activations.
  const floating = await run(MODEL, "f32");
  assert.equal(floating.weights, "f32");
  assert.ok(least(floating, expected) > 0.999 && least(floating, full) > cosines[1], `${least(floating, full)}`);
  // Fewer bits stay as they are.
  assert.match((await run("/models/mini.kiln", "int8")).weights, /^int4/);
  assert.match(await failure(MODEL, { weights: "int3" }), /int3.*int8/);
});

test("many texts are shared by several workers, and are the vectors of one", async () => {
  const found = await page.evaluate(async (url) => {
    const texts = Array.from({ length: 300 }, (_, at) => `${at} ${"boats and ships ".repeat(at % 7)}in the harbour`);
    const embed = async (workers) => {
      const model = await window.kiln.Embedder.load(url, { workers, device: "cpu" });
      const progress = [];
      const vectors = await model.embed(texts, { onProgress: ({ texts }) => progress.push(texts) });
      // The second call finds them at work already.
      const again = await model.embed(texts.slice().reverse());
      const threads = (await model.embed(["one"])).length;
      return { model, vectors, again, progress, threads };
    };
    const [one, three] = [await embed(1), await embed(3)];
    const stop = new AbortController();
    let over = false;
    let late = 0;
    const onProgress = () => (over ? late++ : stop.abort());
    const run = three.model.embed(texts, { signal: stop.signal, onProgress });
    const aborted = await run.then(() => "it ended", (error) => error.name);
    over = true;
    const after = (await three.model.embed(texts)).length;
    const wrong = await three.model.embed(texts, { prompt: "none such" }).catch((error) => error.message);
    const furthest = (a, b) => Math.max(...a.map((vector, at) => Math.max(...vector.map((x, i) => Math.abs(x - b[at][i])))));
    window.models = [one.model, three.model];
    return {
      error: furthest(one.vectors, three.vectors),
      again: furthest(one.vectors, three.again.reverse()),
      progress: three.progress,
      aborted,
      after,
      late,
      wrong,
    };
  }, MODEL);
  // Batches are cut otherwise, so sums may be rounded otherwise.
  assert.ok(found.error < 1e-3 && found.again < 1e-3, JSON.stringify(found));
  assert.ok(found.progress.every((texts, at) => at === 0 || texts >= found.progress[at - 1]));
  assert.equal(found.progress.at(-1), 300);
  assert.deepEqual([found.aborted, found.after, found.late], ["AbortError", 300, 0]);
  assert.match(found.wrong, /none such/);
  assert.equal(page.workers().length, 1 + 3);
  await page.evaluate(() => window.models.forEach((model) => model.dispose()));
  await workersEnd();
});

test("a worker that cannot be had is done without", async () => {
  const warnings = [];
  page.on("console", (message) => message.type() === "warning" && warnings.push(message.text()));
  const load = (options) => page.evaluate(async ([url, options]) => {
    window.model = await window.kiln.Embedder.load(url, { device: "cpu", ...options });
  }, [MODEL, options]);
  const embed = () => page.evaluate(async () => {
    const texts = Array.from({ length: 200 }, (_, at) => `${at} ships`);
    const vectors = await window.model.embed(texts);
    return vectors.length === 200 && vectors.every((vector) => Math.abs(Math.hypot(...vector) - 1) < 1e-3);
  });
  await load({ workers: 3, cache: false });
  server.setDown(true);
  assert.ok(await embed());
  // Downloads are tried several times before they are given up.
  while (warnings.length < 2) await page.waitForEvent("console", { timeout: 60_000 });
  server.setDown(false);
  assert.ok(await embed());
  assert.ok(warnings.some((text) => text.includes("one worker fewer")), JSON.stringify(warnings));
  assert.ok((await failure(MODEL, { workers: 0 })).includes("RangeError"));
});

test("kiln-mini, in int4, gives its native vectors", async () => {
  const vectors = await page.evaluate(async (texts) => {
    const model = await window.kiln.Embedder.load("/models/mini.kiln");
    return (await model.embed(texts)).map((vector) => [...vector]);
  }, texts);
  const expected = native("native-mini.jsonl");
  for (const [at, vector] of vectors.entries()) assert.ok(cosine(vector, expected[at]) > 0.999, `${texts[at]}: ${cosine(vector, expected[at])}`);
});

test("what a model's files put around a text, and leave out of pooling, is what it is natively", async () => {
  const [asked, unasked] = await page.evaluate(async (texts) => {
    const model = await window.kiln.Embedder.load("/models/around.kiln");
    const vectors = async (options) => (await model.embed(texts, options)).map((vector) => [...vector]);
    return [await vectors({ promptText: "Query: " }), await vectors({})];
  }, texts);
  const expected = native("native-around.jsonl");
  for (const [at, vector] of asked.entries()) assert.ok(cosine(vector, expected[at]) > 0.9999, `${texts[at]}: ${cosine(vector, expected[at])}`);
  // The instruction is left out of pooling, and attended to all the same.
  assert.ok(unasked.some((vector, at) => cosine(vector, expected[at]) < 0.9999));
});

test("without relaxed SIMD, or where that build does not compile, the other build gives the same", async () => {
  const load = () => page.evaluate(
    async ([url, texts]) => {
      const model = await window.kiln.Embedder.load(url, { worker: false });
      return { vectors: (await model.embed(texts)).map((vector) => [...vector]), device: model.device };
    },
    [MODEL, texts],
  );
  const warnings = [];
  page.on("console", (message) => message.type() === "warning" && warnings.push(message.text()));
  await page.route("**/relaxed/*.wasm", (route) => route.fulfill({ body: Buffer.from([0, 97, 115, 109, 9, 9, 9, 9]), contentType: "application/wasm" }));
  const fallen = await load();
  assert.match(warnings.join(), /the simd build is used instead of relaxed/);
  await page.reload();
  await page.waitForFunction(() => window.kiln);
  await page.evaluate(() => { WebAssembly.validate = () => false; });
  const plain = await load();
  for (const { vectors, device } of [fallen, plain]) {
    assert.equal(device, "cpu (wasm, SIMD)");
    for (const [at, vector] of vectors.entries()) assert.ok(cosine(vector, expected[at]) > 0.999, texts[at]);
  }
});

test("options: dimensions, normalize, prompts, one text, none", async () => {
  const found = await page.evaluate(async (url) => {
    const model = await window.kiln.Embedder.load(url);
    const length = (vector) => Math.hypot(...vector);
    const whole = await model.embed("a boat", { normalize: false });
    const short = await model.embed("a boat", { dimensions: 32 });
    const prompted = await model.embed("a boat", { promptText: "query: " });
    const failed = (promise) => promise.then(() => "nothing", (error) => error.message);
    return {
      whole: length(whole), short: [short.length, length(short)], same: [...short].every((x, at) => Math.abs(x - whole[at] * (short[0] / whole[0])) < 1e-5),
      differs: window.kiln.cosine(whole, prompted), none: await model.embed([]),
      prompt: await failed(model.embed("a", { prompt: "nope" })), wide: await failed(model.embed("a", { dimensions: 100000 })),
      likeness: [await model.similarity("a boat", "a ship"), await model.similarity("a boat", "tax law")],
      tokens: await model.countTokens("a boat"), why: await model.explain("a boat 🚤 here"),
    };
  }, MODEL);
  assert.ok(Math.abs(found.whole - 1) > 1e-3, `not of length 1: ${found.whole}`);
  assert.equal(found.short[0], 32);
  assert.ok(Math.abs(found.short[1] - 1) < 1e-5 && found.same);
  assert.ok(found.differs < 0.9999);
  assert.deepEqual(found.none, []);
  assert.match(found.prompt, /no prompt "nope"/);
  assert.match(found.wide, /100000 dimensions/);
  assert.ok(found.likeness[0] > found.likeness[1] + 0.2);
  assert.equal(found.tokens, 4);
  const words = found.why.tokens.map(({ start, end }) => "a boat 🚤 here".slice(start, end));
  assert.ok(words.includes("boat") && words.includes("here"), JSON.stringify(words));
  assert.equal(found.why.weights.length, found.why.tokens.length);
});

test("a kept model loads without the network", async () => {
  await page.evaluate((url) => window.kiln.Embedder.load(url).then((model) => model.dispose()), MODEL);
  server.setDown(true);
  const stages = await page.evaluate(async (url) => {
    const seen = [];
    const model = await window.kiln.Embedder.load(url, { onProgress: (progress) => seen.push(progress) });
    await model.embed("offline");
    return seen;
  }, MODEL);
  server.setDown(false);
  assert.deepEqual(stages.map(({ stage, cached }) => [stage, cached]), [["download", true], ["open", undefined], ["ready", undefined]]);
  await page.evaluate((url) => window.kiln.clearCache(url), MODEL);
  const before = server.seen.filter(({ path }) => path === MODEL).length;
  await page.evaluate((url) => window.kiln.Embedder.load(url), MODEL);
  assert.equal(server.seen.filter(({ path }) => path === MODEL).length, before + 1, "a cleared model is fetched again");
});

test("a file that has changed on the server is fetched the next time", async () => {
  const path = join(KILN_MODELS, "changing.kiln");
  const width = () => page.evaluate(async () => {
    const model = await window.kiln.Embedder.load("/models/changing.kiln");
    const { hiddenSize } = model.info;
    model.dispose();
    return hiddenSize;
  });
  writeFileSync(path, readFileSync(miniFile));
  assert.equal(await width(), 256);
  writeFileSync(path, readFileSync(modelFile));
  assert.equal(await width(), 256, "what is kept is used at once");
  const isKept = () => page.evaluate(async () => Boolean(await (await caches.open("kiln-embed-1")).match("/models/changing.kiln")));
  while (await isKept()) await page.waitForTimeout(50);
  assert.equal(await width(), 384);
});

test("where the file changes under a model, no other worker computes with the new one", async () => {
  const warnings = [];
  page.on("console", (message) => message.type() === "warning" && warnings.push(message.text()));
  const path = join(KILN_MODELS, "changing.kiln");
  writeFileSync(path, readFileSync(miniFile));
  await page.evaluate(async () => (await window.kiln.Embedder.load("/models/changing.kiln")).dispose());
  writeFileSync(path, readFileSync(modelFile));
  const least = await page.evaluate(async () => {
    const { Embedder, cosine } = window.kiln;
    const load = (url, workers) => Embedder.load(url, { workers, device: "cpu" });
    const [model, one] = [await load("/models/changing.kiln", 3), await load("/models/mini.kiln", 1)];
    const cache = await caches.open("kiln-embed-1");
    while (await cache.match("/models/changing.kiln")) await new Promise((later) => setTimeout(later, 20));
    const texts = Array.from({ length: 600 }, (_, at) => `${at} ${"boats and ships ".repeat(at % 7)}in the harbour`);
    const [vectors, alone] = [await model.embed(texts), await one.embed(texts)];
    return Math.min(...vectors.map((vector, at) => cosine(vector, alone[at])));
  });
  // Both have 384 dimensions, and cosines of one's vectors with the other's are about 0.
  assert.ok(least > 0.999, `${least}`);
  while (warnings.length < 2) await page.waitForTimeout(100);
  for (const line of warnings) assert.match(line, /files are others by now.*; one worker fewer computes/);
});

test("a full store is a warning, and no failure", async () => {
  const warnings = [];
  page.on("console", (message) => message.type() === "warning" && warnings.push(message.text()));
  const found = await page.evaluate(async (url) => {
    Cache.prototype.put = () => Promise.reject(new DOMException("no room", "QuotaExceededError"));
    IDBObjectStore.prototype.put = () => { throw new DOMException("no room", "QuotaExceededError"); };
    const model = await window.kiln.Embedder.load(url);
    const index = await window.kiln.Index.create({ dimensions: model.dimensions });
    await index.add([{ id: 1, vector: await model.embed("a boat") }]);
    return { said: await index.save("full").catch((error) => error.message), size: index.size };
  }, "/models/mini.kiln");
  assert.match(warnings.join(), /mini\.kiln is not kept for the next time: no room/);
  assert.equal(found.size, 1);
  assert.match(found.said, /storage for this site is full; delete saved indexes/);
});

for (const named of ["a tag", "a date"]) {
  test(`a download that breaks off goes on where it stopped, its version named by ${named}`, async () => {
    if (named === "a date") server.dated.add(MODEL);
    server.cuts.set(MODEL, 1_000_000);
    const from = server.seen.length;
    const progress = await page.evaluate(async (url) => {
      const seen = [];
      const model = await window.kiln.Embedder.load(url, { onProgress: (progress) => seen.push(progress) });
      await model.embed("a");
      return seen;
    }, MODEL);
    const ranges = server.seen.slice(from).filter(({ path }) => path === MODEL).map(({ range }) => range);
    assert.equal(ranges.length, 2);
    assert.match(ranges[1], /^bytes=[1-9]\d+-$/);
    const loaded = progress.filter(({ stage }) => stage === "download").map(({ loaded }) => loaded);
    assert.deepEqual(loaded, loaded.toSorted((a, b) => a - b));
    assert.equal(progress.at(-1).stage, "ready");
  });
}

test("an aborted download goes on at the next load", async () => {
  const from = server.seen.length;
  const said = await page.evaluate(async (url) => {
    const stop = new AbortController();
    const onProgress = ({ loaded }) => loaded > 1_000_000 && stop.abort();
    return window.kiln.Embedder.load(url, { onProgress, signal: stop.signal }).then(() => "it loaded", (error) => error.name);
  }, MODEL);
  assert.equal(said, "AbortError");
  await page.evaluate((url) => window.kiln.Embedder.load(url), MODEL);
  const ranges = server.seen.slice(from).filter(({ path }) => path === MODEL).map(({ range }) => range);
  assert.match(ranges.at(-1), /^bytes=[1-9]\d+-$/);
});

test("what was kept of another version is fetched again", async () => {
  const from = server.seen.length;
  await page.evaluate(async (url) => {
    const stop = new AbortController();
    const onProgress = ({ loaded }) => loaded > 1_000_000 && stop.abort();
    await window.kiln.Embedder.load(url, { onProgress, signal: stop.signal }).catch(() => {});
    const [name] = await caches.keys();
    const cache = await caches.open(name);
    const [request] = (await cache.keys()).filter(({ url }) => url.includes("kiln-embed-part"));
    const part = await cache.match(request);
    const bytes = new Uint8Array(await part.arrayBuffer());
    bytes[bytes.length - 1] ^= 1;
    // As it would have been kept.
    const headers = new Headers(part.headers);
    headers.set("x-kiln-sum", Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)), (byte) => byte.toString(16).padStart(2, "0")).join(""));
    await cache.put(request, new Response(bytes, { headers }));
    await window.kiln.Embedder.load(url);
  }, MODEL);
  const ranges = server.seen.slice(from).filter(({ path }) => path === MODEL).map(({ range }) => range !== undefined);
  assert.deepEqual(ranges, [false, true, false]);
});

test("what is wrong with a file is said in one line", async () => {
  const bytes = readFileSync(modelFile);
  const flipped = Buffer.from(bytes);
  flipped[flipped.length >> 1] ^= 1;
  writeFileSync(join(KILN_MODELS, "flipped.kiln"), flipped);
  writeFileSync(join(KILN_MODELS, "short.kiln"), bytes.subarray(0, bytes.length / 2));
  writeFileSync(join(KILN_MODELS, "junk.kiln"), Buffer.alloc(5_000_000, 7));
  for (const [source, expected] of [
    ["/models/none.kiln", /404/],
    ["/models/nowhere/", /config\.json.*404/],
    ["/app/model.kiln", /web page/],
    ["/models/flipped.kiln", /sum|SHA-256|damaged/],
    ["/models/short.kiln", /short|cut|ends/],
    ["/models/junk.kiln", /kiln/],
  ]) {
    const said = await failure(source);
    assert.match(said, expected, source);
    assert.ok(!said.includes("\n") && !/panicked|unreachable/.test(said), said);
  }
  assert.match(await failure("/models/model.kiln", { device: "abacus" }), /"abacus" is unknown; known are/);
  await workersEnd();
});

test("a damaged file is downloaded once, not again", async () => {
  const from = server.seen.length;
  assert.match(await failure("/models/flipped.kiln"), /sum|SHA-256|damaged/);
  assert.equal(server.seen.slice(from).filter(({ path }) => path === "/models/flipped.kiln").length, 1);
});

test("the example page compares two texts", async () => {
  await page.route("**/examples/bare/model.kiln", (route) => route.fulfill({ path: modelFile, contentType: "application/octet-stream" }));
  await page.goto(`${server.url}/wasm/examples/bare/index.html`);
  const output = page.locator("#result");
  await page.waitForFunction(() => /^0\.\d{3}$/.test(document.querySelector("#result").textContent));
  const before = await output.textContent();
  await page.fill("#b", "income tax law");
  await page.waitForFunction((before) => document.querySelector("#result").textContent !== before, before);
  assert.ok(Number(before) > Number(await output.textContent()));
});

test("kept bytes that are damaged are fetched again", async () => {
  const loaded = await page.evaluate(async (url) => {
    const cache = await caches.open("kiln-embed-1");
    await cache.put(new URL(url, location.href).href, new Response(new Uint8Array(1000)));
    return (await window.kiln.Embedder.load(url)).dimensions;
  }, MODEL);
  assert.equal(loaded, expected[0].length);
});

test("files and bytes load too, and stay the caller's", async () => {
  const found = await page.evaluate(async (url) => {
    const bytes = await (await fetch(url)).arrayBuffer();
    const load = async (source) => (await window.kiln.Embedder.load(source)).dimensions;
    const widths = [await load(new File([bytes], "model.kiln")), await load(bytes), await load(new Uint8Array(bytes)), await load([new File([bytes], "model.kiln")])];
    return { widths, left: bytes.byteLength };
  }, MODEL);
  assert.deepEqual(new Set(found.widths), new Set([expected[0].length]));
  assert.ok(found.left > 0);
});

test("a model folder is loaded by its address, with its own layout", async () => {
  const vectors = await page.evaluate(async (texts) => {
    const model = await window.kiln.Embedder.load("/models/folder");
    return (await model.embed(texts)).map((vector) => [...vector]);
  }, texts.slice(0, 4));
  for (const [at, vector] of vectors.entries()) assert.ok(cosine(vector, expected[at]) > 0.999);
});

test("a plain folder, whose optional files are not all there, loads without the network too", async () => {
  const load = () => page.evaluate(async (text) => {
    const model = await window.kiln.Embedder.load("/models/plain/");
    return { vector: [...(await model.embed(text))], weights: model.info.weights };
  }, texts[0]);
  const first = await load();
  assert.equal(first.weights, null);
  assert.ok(cosine(first.vector, expected[0]) > 0.999);
  server.setDown(true);
  assert.deepEqual(await load(), first);
});

test("a folder as it was trained, which has no manifest, loads with the weights of its pooling head", async () => {
  const trained = native("native-bf16.jsonl");
  const vectors = await page.evaluate(async (texts) => {
    const model = await window.kiln.Embedder.load("/models/quickstart/model");
    return (await model.embed(texts)).map((vector) => [...vector]);
  }, texts);
  // The same weights, which bf16 rounds in the other.
  for (const [at, vector] of vectors.entries()) assert.ok(cosine(vector, trained[at]) > 0.999, `${texts[at]}: ${cosine(vector, trained[at])}`);
});

test("a run stops when told to, the page goes on meanwhile, and the next run works", async () => {
  const found = await page.evaluate(async ([url, texts]) => {
    const model = await window.kiln.Embedder.load(url);
    const many = Array.from({ length: 400 }, (_, at) => `${at} ${texts[at % texts.length]}`);
    let ticks = 0;
    const timer = setInterval(() => ticks++, 5);
    const stop = new AbortController();
    const progress = [];
    const options = { batchTokens: 256, signal: stop.signal, onProgress: (now) => { progress.push(now); if (progress.length === 5) stop.abort(); } };
    const said = await model.embed(many, options).then(() => "it went on", (error) => error.name);
    const waiting = model.embed(many, { signal: AbortSignal.abort() }).then(() => "it went on", (error) => error.name);
    const next = await model.embed("after");
    clearInterval(timer);
    return { said, waiting: await waiting, ticks, texts: progress.at(-1).texts, next: next.length };
  }, [MODEL, texts]);
  assert.deepEqual([found.said, found.waiting], ["AbortError", "AbortError"]);
  assert.ok(found.texts < 400 && found.next > 0);
  assert.ok(found.ticks > 3, `the page went on ${found.ticks} times`);
});

test("dispose ends the worker and what waits", async () => {
  const said = await page.evaluate(async (url) => {
    const model = await window.kiln.Embedder.load(url);
    const run = model.embed(Array.from({ length: 200 }, (_, at) => `text ${at}`)).catch((error) => error.message);
    model.dispose();
    model.dispose();
    return [await run, await model.embed("a").catch((error) => error.message)];
  }, MODEL);
  assert.deepEqual(said, ["the embedder is disposed", "the embedder is disposed"]);
  await workersEnd();
});

test("memory stays flat over thirty loads and disposals", async (run) => {
  const resident = await pageMemory(browser);
  if (typeof resident === "string") return run.skip(resident);
  const again = (times) => page.evaluate(async ([url, times]) => {
    for (let time = 0; time < times; time++) {
      const model = await window.kiln.Embedder.load(url);
      await model.embed("a boat");
      model.dispose();
    }
  }, [MODEL, times]);
  await again(10);
  const early = await resident();
  await again(20);
  const late = await resident();
  run.diagnostic(`${early.toFixed(0)} MB after 10 loads, ${late.toFixed(0)} MB after 30`);
  // A model takes some 100 MB; one in ten that stayed would be 200.
  assert.ok(late < early + 150, `${early} MB after 10 loads, ${late} MB after 30`);
});

test("a lens shows every head, the attention and the states", async () => {
  const { lens, why, vectors } = await page.evaluate(async (url) => {
    const model = await window.kiln.Embedder.load(url);
    const text = "The old lighthouse 🚤 guides ships";
    const lens = await model.lens(text);
    return { lens: { ...lens, attention: [...lens.attention], states: [...lens.states] }, why: await model.explain(text), vectors: model.dimensions };
  }, MODEL);
  const count = why.tokens.length;
  assert.deepEqual(lens.own, why);
  assert.deepEqual(lens.heads.map(({ name }) => name), ["mean", "cls", "last_token", "weighted_mean", "anchor"]);
  const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-4, `${a} ${b}`);
  const sum = (numbers) => numbers.reduce((sum, x) => sum + x, 0);
  for (const { weights } of lens.heads) {
    assert.equal(weights.length, count);
    near(sum(weights), 1);
  }
  // The model pools by the mean: that head gives its own vector.
  lens.heads[0].weights.forEach((weight, at) => near(weight, why.weights[at]));
  near(lens.heads[0].cosine, 1);
  assert.ok(lens.heads.slice(1).every(({ cosine }) => cosine > 0 && cosine < 0.9999));
  assert.equal(lens.heads[1].weights[0], 1);
  assert.equal(lens.heads[2].weights[count - 1], 1);
  assert.equal(lens.attention.length, lens.attentionHeads * count * count);
  for (let row = 0; row < lens.attentionHeads * count; row++) near(sum(lens.attention.slice(row * count, (row + 1) * count)), 1);
  const width = lens.states.length / count;
  assert.equal(width, vectors);
  for (let token = 0; token < count; token++) near(sum(lens.states.slice(token * width, (token + 1) * width).map((x) => x * x)), 1);
  assert.equal(lens.layers.length, 7);
  near(lens.layers.at(-1), 1);
});

test("an index finds what is nearest, and survives a reload", async () => {
  const found = await page.evaluate(async ([url, texts]) => {
    const { Embedder, Index, cosine } = window.kiln;
    const model = await Embedder.load(url);
    const vectors = await model.embed(texts);
    const query = await model.embed("boats on the water");
    const exact = texts.map((text, id) => [id, cosine(query, vectors[id])]).sort((a, b) => b[1] - a[1]);
    const result = { exact: exact.slice(0, 3).map(([id]) => id), found: {} };
    for (const precision of ["f32", "int8", "binary", "binary+int8"]) {
      const index = await Index.create({ dimensions: model.dimensions, precision });
      await index.add(texts.map((data, id) => ({ id, vector: vectors[id], data })));
      result.found[precision] = (await index.search(query, { k: 3, rescore: texts.length })).map(({ id }) => id);
      index.dispose();
    }
    const index = await Index.create({ dimensions: model.dimensions });
    await index.add(texts.map((data, id) => ({ id: `t${id}`, vector: vectors[id], data })));
    const kept = await index.vectors(["t3", "t0"]);
    result.kept = [cosine(kept[0], vectors[3]), cosine(kept[1], vectors[0])];
    result.entries = index.entries();
    result.unknown = await index.vectors(["t3", "nope"]).catch((error) => error.message);
    const best = exact[0][0];
    result.removed = await index.remove([`t${best}`, "not there"]);
    result.second = (await index.search(query, { k: 1 }))[0];
    await index.add([{ id: "t5", vector: query, data: "replaced" }]);
    result.replaced = (await index.search(query, { k: 1 }))[0];
    result.size = index.size;
    const failed = (promise) => promise.then(() => "nothing", (error) => error.message);
    result.wide = await failed(index.add([{ id: "x", vector: [1, 2] }]));
    result.nan = await failed(index.add([{ id: "x", vector: new Float32Array(model.dimensions).fill(NaN) }]));
    result.precision = await failed(Index.create({ dimensions: 4, precision: "int7" }));
    await index.save("test");
    return result;
  }, [MODEL, texts]);
  for (const [precision, ids] of Object.entries(found.found)) {
    if (precision !== "binary") assert.deepEqual(ids, found.exact, precision);
  }
  assert.ok(found.kept.every((cosine) => cosine > 0.9999), `${found.kept}`);
  assert.deepEqual(found.entries, texts.map((text, at) => [`t${at}`, text]));
  assert.match(found.unknown, /no "nope"/);
  assert.equal(found.removed, 1);
  assert.equal(found.second.id, `t${found.exact[1]}`);
  assert.equal(found.second.data, texts[found.exact[1]]);
  assert.equal(found.replaced.data, "replaced");
  assert.equal(found.size, texts.length - 1);
  assert.match(found.wide, /2 dimensions/);
  assert.match(found.nan, /not finite/);
  assert.match(found.precision, /int8, binary/);
  await page.reload();
  await page.waitForFunction(() => window.kiln);
  const after = await page.evaluate(async () => {
    const { Index } = window.kiln;
    const index = await Index.load("test");
    const names = await Index.names();
    const damaged = { ...(await index.export()), bytes: new Uint8Array(30) };
    const said = await Index.import(damaged).catch((error) => error.message);
    await Index.delete("test");
    return { size: index.size, data: index.get("t5"), names, gone: await Index.load("test"), said };
  });
  assert.equal(after.size, texts.length - 1);
  assert.equal(after.data, "replaced");
  assert.deepEqual(after.names, ["test"]);
  assert.equal(after.gone, undefined);
  assert.match(after.said, /index/);
});
