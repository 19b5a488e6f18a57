// kiln-embed under attack in a real browser, by tests/browser.sh: servers, saved indexes and callers that mean
// no good. Every test ends in one line of error, or in the right vectors; unit.test.mjs has more of what
// servers can do.

import assert from "node:assert/strict";
import { test } from "node:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { openKiln, withPage } from "./browser.mjs";
import { packages } from "./server.mjs";
import { cosine, native, texts } from "./vectors.mjs";

const { KILN_MODELS } = process.env;
const MINI = "/models/mini.kiln";
const expected = native("native.jsonl");
const mini = native("native-mini.jsonl");

let server, context, page, warnings;
withPage({ roots: { page: import.meta.dirname, ...packages(), models: KILN_MODELS } }, async (begun) => {
  ({ server, context, page } = begun);
  warnings = [];
  page.on("pageerror", (error) => assert.fail(`the page threw ${error}`));
  page.on("console", (message) => message.type() === "warning" && warnings.push(message.text()));
  await openKiln(page, server);
});

/** What a load says: the model's info and the vector of a text, or why it fails. */
const load = (source, options = {}) =>
  page.evaluate(
    async ([source, options, text]) => {
      try {
        const model = await window.kiln.Embedder.load(source, { device: "cpu", ...options });
        const vector = [...(await model.embed(text))];
        model.dispose();
        return { info: model.info, vector };
      } catch (error) {
        return { error: `${error.name}: ${error.message}` };
      }
    },
    [source, options, texts[0]],
  );
const fails = async (source, why) => {
  const { error } = await load(source);
  assert.match(error ?? "it loaded", why);
  assert.ok(!error.includes("\n"), error);
};
const near = ({ vector, error }, to) => assert.ok(vector && cosine(vector, to) > 0.999, error);
const says = (status, type, body = "") => (request, response) => response.writeHead(status, { "content-type": type }).end(body);

for (const [what, name, answer, why] of [
  ["a 403", "modules.json", says(403, "text/plain"), /^NetworkError: .*modules\.json: the server says 403/],
  ["a login page", "modules.json", says(200, "text/html", "<p>Please log in</p>"), /^NetworkError: .*modules\.json is a web page/],
  ["a login page", "kiln.json", says(200, "text/html", "<p>Please log in</p>"), /^NetworkError: .*kiln\.json is a web page/],
  ["a login page that calls itself text", "kiln.json", says(200, "text/plain", "<p>Please log in</p>"), /kiln\.json is not the file .* it is no JSON: it begins with "<p>Please/],
  ["a way to a login page", "kiln.json", (request, response) => response.writeHead(302, { location: "/app/login" }).end(), /kiln\.json led to .*\/app\/login, which is a web page/],
]) {
  test(`${what} for ${name} is an error, and nothing of it is kept`, async () => {
    server.answers.set(`/models/folder/${name}`, answer);
    if (name === "modules.json") server.missing.add("/models/folder/kiln.json");
    await fails("/models/folder", why);
    server.mend();
    const found = await load("/models/folder");
    near(found, expected[0]);
    assert.match(found.info.fingerprint, /^[0-9a-f]{64}$/);
    assert.equal(found.info.pooling, "mean");
  });
}

test("what was not there is found by the next load", async () => {
  server.missing.add("/models/folder/kiln.json");
  assert.equal((await load("/models/folder")).info.fingerprint, null);
  server.mend();
  assert.match((await load("/models/folder")).info.fingerprint, /^[0-9a-f]{64}$/);
});

test("a manifest leads nowhere but to its own folder", async () => {
  for (const name of ["%2e%2e/%2e%2e/page/page.html", "..\\..\\x", "//127.0.0.1/x", "http://127.0.0.1/x", "data:text/html,x", "javascript:alert(1)", "x?y", "x#y"]) {
    const from = server.seen.length;
    await page.evaluate(() => window.kiln.clearCache());
    server.answers.set("/models/folder/kiln.json", says(200, "application/json", JSON.stringify({ format: 1, files: { [name]: { bytes: 9, sha256: "" } } })));
    await fails("/models/folder", /kiln\.json names ".*", which is no path inside the model$/);
    assert.deepEqual(server.seen.slice(from).map(({ path }) => path).filter((path) => !path.startsWith("/pkg/")), ["/models/folder/kiln.json"]);
  }
});

test("the rest of another version is not joined", async () => {
  const [file, other] = [readFileSync(join(KILN_MODELS, "mini.kiln")), readFileSync(join(KILN_MODELS, "model.kiln"))];
  const seen = [];
  server.answers.set("/models/two.kiln", (request, response) => {
    if (request.method === "HEAD") return response.end();
    seen.push(request.headers.range);
    if (seen.length === 1) {
      response.writeHead(200, { etag: '"1"', "content-length": file.length, "cache-control": "no-store" });
      response.write(file.subarray(0, 500_000), () => setTimeout(() => request.socket.destroy(), 50));
    } else if (seen.length === 2) {
      const from = Number(/\d+/.exec(request.headers.range)[0]);
      response.writeHead(206, { etag: '"2"', "content-range": `bytes ${from}-${other.length - 1}/${other.length}` }).end(other.subarray(from));
    } else {
      response.writeHead(200, { etag: '"1"', "content-length": file.length }).end(file);
    }
  });
  near(await load("/models/two.kiln"), mini[0]);
  assert.match(seen[1], /^bytes=[1-9]/);
  assert.deepEqual([seen.length, seen[2]], [3, undefined]);
});

test("a body without end is refused as soon as it is too long, or another file", async () => {
  const endless = (beginning) => (request, response) => {
    const more = () => {
      while (!response.destroyed && response.write(Buffer.alloc(1 << 16, 32)));
    };
    response.on("drain", more).write(beginning);
    more();
  };
  server.answers.set("/models/endless.kiln", endless(readFileSync(join(KILN_MODELS, "mini.kiln"))));
  await fails("/models/endless.kiln", /more bytes come than the \d+ that it should have/);
  server.answers.set("/models/endless.kiln", endless("<p>"));
  await fails("/models/endless.kiln", /begins with "<p> +", as no \.kiln file does/);
  server.answers.set("/models/folder/config.json", endless("{}"));
  await fails("/models/folder", /config\.json is not the file .*: more bytes come than the \d+/);
});

test("kept bytes that are damaged are fetched anew, once; a plain folder's too", async () => {
  near(await load("/models/plain/"), expected[0]);
  await page.evaluate(async () => {
    const cache = await caches.open("kiln-embed-1");
    for (const request of await cache.keys()) {
      if (!request.url.endsWith("/model.safetensors")) continue;
      const kept = await cache.match(request);
      const bytes = new Uint8Array(await kept.arrayBuffer());
      // Numbers, that nothing else would find.
      for (let at = bytes.length >> 1; at < bytes.length; at++) bytes[at] = 0;
      await cache.put(request, new Response(bytes, { headers: kept.headers }));
    }
  });
  const from = server.seen.length;
  for (let time = 0; time < 2; time++) near(await load("/models/plain/"), expected[0]);
  assert.equal(server.seen.slice(from).filter(({ path }) => path === "/models/plain/model.safetensors").length, 1);
});

test("a wrong option costs nothing of what is kept", async () => {
  near(await load(MINI), mini[0]);
  const from = server.seen.length;
  assert.match((await load(MINI, { weights: "int3" })).error, /^RangeError: weights "int3" are unknown/);
  assert.match((await load(MINI, { weights: "int8:6" })).error, /^RangeError: weights "int8:6" have groups of 6/);
  const asReranker = () => page.evaluate((url) => window.kiln.Reranker.load(url).then(() => "it loaded", (error) => `${error.name}: ${error.message}`), MINI);
  assert.match(await asReranker(), /^RangeError: .*is no reranker/);
  await page.evaluate(() => Object.defineProperty(navigator, "gpu", { value: undefined }));
  assert.match((await load(MINI, { device: "webgpu", worker: false })).error, /^TypeError: device "webgpu" needs the package kiln-embed-webgpu/);
  const webgpu = await page.evaluate(() => window.webgpu);
  assert.match((await load(MINI, { device: "webgpu", webgpu, worker: false })).error, /^DeviceError: there is no WebGPU/);
  near(await load(MINI), mini[0]);
  assert.equal(server.seen.slice(from).filter(({ path }) => path === MINI).length, 0);
});

test("a full store is said once for a folder of many files", async () => {
  await page.evaluate(() => {
    Cache.prototype.put = () => Promise.reject(new DOMException("no room", "QuotaExceededError"));
  });
  for (let time = 0; time < 2; time++) near(await load("/models/plain/"), expected[0]);
  assert.equal(warnings.length, 1);
  assert.match(warnings[0], /is not kept for the next time: no room/);
});

/** Runs expressions in the page, with `model` (kiln-mini), and gives what each says: a failure's line, or the result. */
async function outcomes(expressions) {
  await page.evaluate(async (url) => (window.model = await window.kiln.Embedder.load(url, { device: "cpu" })) && undefined, MINI);
  const said = [];
  for (const expression of expressions) {
    const run = `(async ({ Embedder, Index, cosine }, model) => ${expression})(window.kiln, window.model)`;
    said.push(await page.evaluate(`${run}.then((value) => (value === undefined ? "undefined" : value), (error) => error.name + ": " + error.message)`));
  }
  return said;
}

test("arguments that make no sense are one line, and the next call works", async () => {
  const cases = [
    ["model.embed(undefined)", /^TypeError: texts is undefined, neither/],
    ["model.embed(7)", /^TypeError: texts is 7, neither/],
    ['model.embed(["a", null])', /^TypeError: texts\[1\] is null, not a string$/],
    ["model.embed([{ toString: () => 'a' }])", /^TypeError: texts\[0\] is an object/],
    ['model.embed("a", { dimensions: 2 ** 32 + 5 })', /^RangeError: 4294967301 dimensions asked of a model that gives 384$/],
    ['model.embed("a", { dimensions: NaN })', /^RangeError: dimensions is NaN/],
    ['model.embed("a", { dimensions: -1 })', /^RangeError: dimensions is -1/],
    ['model.embed("a", { dimensions: 1.5 })', /^RangeError: dimensions is 1\.5/],
    ['model.embed("a", { batchTokens: 0 })', /^RangeError: batchTokens is 0/],
    ['model.embed("a", { batchTokens: 1e9 })', /^RangeError: batchTokens is 1000000000/],
    ['model.embed("a", { normalize: "yes" })', /^TypeError: normalize is "yes"/],
    ['model.embed("a", { prompt: "none such" })', /no prompt "none such"/],
    ['model.embed("a", { promptText: "x".repeat(100_000) })', /^RangeError: promptText has 100000 characters/],
    ['model.embed("a", { signal: 7 })', /^TypeError: signal is 7, not an AbortSignal/],
    ['model.embed("a", { onProgress: 7 })', /^TypeError: onProgress is 7, not a function/],
    ["model.explain(7)", /^TypeError: the text is 7, not a string/],
    ["model.lens(undefined)", /^TypeError: the text is undefined/],
    ["model.countTokens(null)", /^TypeError: the text is null/],
    ["Embedder.load(undefined)", /^TypeError: the source is undefined; give/],
    ["Embedder.load({})", /^TypeError: the source is an object/],
    ["Embedder.load([7])", /^TypeError: the source has 7 in it/],
    ['Embedder.load("data:application/octet-stream,x.kiln")', /^TypeError: .*is no address that files lie under/],
    ['Embedder.load("javascript:alert(1)")', /^TypeError/],
    ["Embedder.load(new Uint8Array())", /0 bytes are too few/],
    ["Embedder.load(new File([], 'x.kiln'))", /0 bytes are too few/],
    ['Embedder.load("/models/mini.kiln", { threads: 1e9 })', /^RangeError: threads is 1000000000, neither/],
    ['Embedder.load("/models/mini.kiln", { workers: NaN })', /^RangeError: workers is NaN, neither/],
    ["Index.create()", /^TypeError: dimensions is undefined/],
    ["Index.create({ dimensions: 0 })", /^RangeError: dimensions is 0/],
    ["Index.create({ dimensions: 1e9 })", /^RangeError: dimensions is 1000000000/],
    ['Index.create({ dimensions: 4, precision: "toString" })', /^RangeError: precision "toString" is unknown/],
    ["Index.load(7)", /^TypeError: the name is 7/],
    ["Index.import(null)", /no saved index/],
  ];
  const said = await outcomes([...cases.map(([expression]) => expression), 'model.embed("a").then(({ length }) => length)']);
  for (const [at, [expression, why]] of cases.entries()) {
    assert.match(String(said[at]), why, expression);
    assert.ok(!said[at].includes("\n"), said[at]);
  }
  assert.equal(said.at(-1), 384);
});

test("texts: halves of characters, very long ones, long prompts", { timeout: 300_000 }, async () => {
  const [halves, long, prompts, offsets] = await outcomes([
    `model.embed(["a \\ud800 boat", "a \\ufffd boat", "\\udc00\\ud800"]).then(([a, b, c]) => cosine(a, b) > 0.999999 && c.every(Number.isFinite))`,
    `model.embed(["the harbour was closed ".repeat(500_000), "the harbour was closed ".repeat(5000)]).then(([a, b]) => cosine(a, b) > 0.999)`,
    `model.embed(["a", "b"], { promptText: "query ".repeat(10_000) }).then((vectors) => vectors.every((vector) => vector.every(Number.isFinite)), (error) => !error.message.includes("\\n"))`,
    `model.explain("\\ud800 boat").then(({ tokens }) => tokens.some(({ start, end }) => start === 1 && end === 6))`,
  ]);
  assert.deepEqual([halves, long, prompts, offsets], [true, true, true, true]);
});

test("an abort ends each stage of a load at once, and a run", async () => {
  const found = await page.evaluate(async (url) => {
    const { Embedder } = window.kiln;
    const bytes = await (await fetch(url)).arrayBuffer();
    const during = async (stage, source) => {
      const stop = new AbortController();
      const onProgress = (now) => now.stage === stage && setTimeout(() => stop.abort());
      return Embedder.load(source, { signal: stop.signal, onProgress, cache: false }).then(() => "it loaded", (error) => error.name);
    };
    const said = [await during("download", url), await during("open", url), await during("open", bytes.slice())];
    said.push(await Embedder.load(bytes.slice(), { signal: AbortSignal.abort() }).catch((error) => error.name));
    const model = await Embedder.load(bytes);
    const stop = new AbortController();
    const run = model.embed(Array.from({ length: 60 }, (_, at) => `${at} ships `.repeat(50)), { signal: stop.signal, batchTokens: 64 }).catch((error) => error.name);
    stop.abort();
    said.push(await run);
    return { said, after: (await model.embed("a boat")).length };
  }, MINI);
  assert.deepEqual(found, { said: Array(5).fill("AbortError"), after: 384 });
});

test("an index: k, rescore, and vectors that are none, at every precision", async () => {
  const found = await page.evaluate(async () => {
    const { Index } = window.kiln;
    const result = {};
    const said = (promise) => promise.then(() => "it worked", (error) => `${error.name}: ${error.message}`);
    for (const precision of ["f32", "int8", "binary", "binary+int8"]) {
      const index = await Index.create({ dimensions: 3, precision });
      await index.add([{ id: "a", vector: [1, 0, 0.5] }, { id: "b", vector: [0, 1, -0.5] }, { id: "c", vector: [-1, 0.5, 0.5] }]);
      const counts = [];
      for (const options of [{ k: 1e9 }, { k: 2 ** 32 }, { k: Number.MAX_VALUE }, { k: 2, rescore: 1e9 }, { k: 1e9, rescore: 2 ** 31 }, { k: 0 }]) {
        counts.push((await index.search([1, 0, 0.5], options)).length);
      }
      const wrong = [];
      for (const options of [{ k: NaN }, { k: -1 }, { k: 1.5 }, { k: Infinity }, { k: "3" }, { rescore: 0 }, { rescore: NaN }, { signal: {} }]) wrong.push(await said(index.search([1, 0, 0.5], options)));
      for (const vector of [[0, 0, 0], [NaN, 1, 1], [Infinity, 0, 0], [1e30, 0, 0], [1e300, 0, 0], [1, 2], "abc", null, undefined, { length: 3 }]) {
        wrong.push(await said(index.search(vector)), await said(index.add([{ id: "x", vector }])));
      }
      for (const id of [undefined, null, NaN, {}, true]) wrong.push(await said(index.add([{ id, vector: [1, 0, 0] }])));
      wrong.push(await said(index.remove("a")), await said(index.vectors("a")), await said(index.add(7)), await said(index.add([null])));
      result[precision] = { counts, wrong, size: index.size, best: (await index.search([1, 0, 0.5], { k: 1 }))[0].id };
      index.dispose();
    }
    return result;
  });
  for (const [precision, { counts, wrong, size, best }] of Object.entries(found)) {
    assert.deepEqual(counts, [3, 3, 3, 2, 3, 0], precision);
    for (const said of wrong) assert.match(said, /^(TypeError|RangeError): [^\n]*(is|has|are) [^\n]*$/, precision);
    assert.deepEqual([size, best], [3, "a"]);
  }
});

test("an index: an id has one vector, however it is added and removed", async () => {
  const found = await page.evaluate(async () => {
    const { Index } = window.kiln;
    const index = await Index.create({ dimensions: 2, precision: "f32" });
    const ids = async (query) => (await index.search(query)).map(({ id, data }) => `${id}${data ?? ""}`);
    // At the same time, and the one after the other.
    await Promise.all([index.add([{ id: "a", vector: [1, 0], data: 1 }]), index.add([{ id: "a", vector: [0, 1], data: 2 }, { id: "b", vector: [0.6, 0.8] }])]);
    const result = { both: [index.size, await ids([0, 1])] };
    await index.add([{ id: "a", vector: [1, 0] }]);
    result.again = [index.size, await ids([1, 0]), index.get("a")];
    const searched = index.search([1, 0]);
    const [removed, twice] = await Promise.all([index.remove(["a", "a", "none"]), index.remove(["a"])]);
    result.removed = [removed, twice, index.size, index.has("a"), await ids([1, 0]), (await searched).length];
    await index.add([{ id: 1, vector: [1, 0] }, { id: "1", vector: [0, 1] }]);
    result.types = [index.size, (await index.search([1, 0], { k: 1 }))[0].id];
    result.given = await index.add([{ id: "x", vector: [1, 0] }, { id: "x", vector: [0, 1] }]).catch((error) => error.message);
    const saved = await index.export();
    const doubled = { ...saved, entries: saved.entries.map(([, data]) => ["same", data]) };
    result.import = await Index.import(doubled).catch((error) => error.message);
    return result;
  });
  assert.deepEqual(found, {
    both: [2, ["a2", "b"]],
    again: [2, ["a", "b"], undefined],
    removed: [1, 0, 1, false, ["b"], 2],
    types: [3, 1],
    given: '"x" is added twice',
    import: 'the saved index names "same" twice',
  });
});

test("an index takes vectors of one model, and is asked by it, where it is told", async () => {
  const said = await page.evaluate(async () => {
    const { Index } = window.kiln;
    const line = (run) => run.then(() => "it ran", ({ name, message }) => `${name}: ${message}`);
    const index = await Index.create({ dimensions: 2, precision: "f32", model: "one" });
    const unnamed = await Index.create({ dimensions: 2 });
    const entries = [{ id: "a", vector: [1, 0] }];
    const said = {
      same: await line(index.add(entries, { model: "one" })),
      untold: await line(index.add([{ id: "b", vector: [0, 1] }], { model: null })),
      other: await line(index.add([{ id: "c", vector: [0, 1] }], { model: "one+ab" })),
      number: await line(index.add(entries, { model: 7 })),
      left: index.entries().map(([id]) => id),
      asked: await line(index.search([1, 0], { model: "one" })),
      askedUntold: await line(index.search([1, 0])),
      askedByOther: await line(index.search([1, 0], { model: "two" })),
      // A question, or nothing, says of no vectors whose they are.
      first: [await line(unnamed.search([1, 0], { model: "two" })), await line(unnamed.add([], { model: "two" })), unnamed.model === undefined],
      taken: [await line(unnamed.add(entries, { model: "one" })), unnamed.model, (await unnamed.export()).settings.model],
      second: await line(unnamed.add(entries, { model: "two" })),
    };
    for (const one of [index, unnamed]) one.dispose();
    return said;
  });
  const refused = (what, model) => `Error: ${what} of the model "${model}", and the index has vectors of "one"; keep an index for each, or embed its texts again`;
  assert.deepEqual(said, {
    same: "it ran",
    untold: "it ran",
    other: refused("the entries are", "one+ab"),
    number: "TypeError: model is 7, not a string",
    left: ["a", "b"],
    asked: "it ran",
    askedUntold: "it ran",
    askedByOther: refused("the query is", "two"),
    first: ["it ran", "it ran", true],
    taken: ["it ran", "one", "one"],
    second: refused("the entries are", "two"),
  });
});

test("an index warns once where the same model computed by other weights, also after it was saved", async () => {
  const said = await page.evaluate(async () => {
    const { Index } = window.kiln;
    const by = (weights, fingerprint = "one") => ({ fingerprint, weights, dimensions: 2 });
    const index = await Index.create({ dimensions: 2, precision: "f32", model: by("int8:32") });
    await index.add([{ id: "a", vector: [1, 0] }], { model: by("int8:32") });
    const saved = await index.export();
    const seen = [saved.settings, index.model];
    // Nothing is known of the weights of a fingerprint alone, and nothing of a model without one.
    for (const model of ["one", by(null), by("f32", null), by("int8:32")]) await index.search([1, 0], { model });
    console.warn("so far");
    for (const weights of ["f32", "int4:32"]) await index.search([1, 0], { model: by(weights) });
    for (const model of [by("f32"), by("int8:32"), "one"]) await Index.import(saved, { model });
    console.warn("floating point");
    const floating = await Index.create({ dimensions: 2 });
    await floating.add([{ id: "a", vector: [1, 0] }], { model: by("bf16") });
    await floating.add([{ id: "b", vector: [0, 1] }], { model: by("f32") });
    seen.push((await floating.export()).settings.weights);
    // As it was saved before weights were.
    const { weights, ...before } = saved.settings;
    const old = await Index.import({ ...saved, settings: before }, { model: by("f32") });
    await old.add([{ id: "b", vector: [0, 1] }], { model: by("f32") });
    seen.push((await old.export()).settings.weights === undefined);
    const line = (run) => run.then(() => "it ran", ({ name, message }) => `${name}: ${message}`);
    seen.push(old.size, await line(index.search([1, 0], { model: by("int8:32", "two") })), await line(index.search([1, 0], { model: {} })));
    return seen;
  });
  const [settings, model, first, unknown, size, other, nameless] = said;
  assert.deepEqual(settings, { dimensions: 2, precision: "f32", model: "one", weights: "int8:32" });
  assert.deepEqual([model, first, unknown, size], ["one", "bf16", true, 2]);
  assert.match(other, /^Error: the query is of the model "two"/);
  assert.match(nameless, /^TypeError: model is an object without a fingerprint/);
  const differ = (what) => `kiln-embed: ${what} computed by f32 weights, and the index's vectors were by int8:32: they are near each other, not the same; load the model with the same weights`;
  assert.deepEqual(warnings, ["so far", differ("the query is"), differ("the model that is given is"), "floating point"]);
});

test("a saved index whose parts do not belong together is refused", async () => {
  const said = await page.evaluate(async () => {
    const { Index } = window.kiln;
    const index = await Index.create({ dimensions: 4, precision: "int8", model: "one" });
    await index.add([{ id: "a", vector: [1, 0, 0, 0], data: "A" }, { id: "b", vector: [0, 1, 0, 0] }]);
    const saved = await index.export();
    const { settings, bytes, entries } = saved;
    const flipped = bytes.slice();
    flipped[flipped.length - 1] ^= 1;
    // The first version has no sum of its own.
    const first = new Uint8Array([...bytes.subarray(0, 24), ...bytes.subarray(56)]);
    first[4] = 1;
    const header = (at, value) => {
      const changed = first.slice();
      new DataView(changed.buffer).setUint32(at, value, true);
      return changed;
    };
    const read = async (changed, options) => {
      try {
        const index = await Index.import({ ...saved, ...changed }, options);
        const [hit] = await index.search([0, 1, 0, 0], { k: 1 });
        index.dispose();
        return `${hit.id}, ${index.model}`;
      } catch (error) {
        return error.message;
      }
    };
    const cases = {
      whole: {}, first: { bytes: first },
      dimensions: { settings: { ...settings, dimensions: 2 } }, precision: { settings: { ...settings, precision: "f32" } }, none: { settings: undefined }, nan: { settings: { dimensions: NaN } },
      names: { entries: entries.slice(1) }, shape: { entries: ["a", "b"] }, ids: { entries: [[{}], ["b"]] }, list: { entries: {} }, version: { version: 2 },
      flipped: { bytes: flipped }, cut: { bytes: bytes.subarray(0, 60) }, other: { bytes: "KIDX" }, huge: { bytes: { length: 1e12 } },
      rows: { bytes: header(16, 2 ** 31) }, width: { bytes: header(12, 2 ** 31) }, zero: { bytes: header(12, 0) },
    };
    const said = {};
    for (const [name, changed] of Object.entries(cases)) said[name] = await read(changed);
    said.same = await read({}, { model: "one" });
    said.otherModel = await read({}, { model: "two" });
    said.unknown = await read({ settings: { dimensions: 4, precision: "int8" } }, { model: "two" });
    // As it would come out of a damaged IndexedDB.
    await index.save("damaged");
    const request = indexedDB.open("kiln-embed");
    const database = await new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    const put = database.transaction("indexes", "readwrite").objectStore("indexes").put({ ...saved, bytes: flipped }, "damaged");
    await new Promise((resolve, reject) => {
      put.onsuccess = resolve;
      put.onerror = () => reject(put.error);
    });
    database.close();
    said.stored = await Index.load("damaged").catch((error) => error.message);
    await Index.delete("damaged");
    return said;
  });
  const reasons = {
    whole: /^b, one$/, first: /^b, one$/, same: /^b, one$/, unknown: /^b, undefined$/,
    dimensions: /^the saved index says 2 dimensions in "int8", and has 4 in int8$/, precision: /says 4 dimensions in "f32", and has 4 in int8/, none: /no settings/, nan: /says NaN dimensions/,
    names: /names 1 entries and has 2 vectors/, shape: /has "a" in place of an entry/, ids: /an id is an object/, list: /no saved index/, version: /no saved index/,
    flipped: /damaged/, cut: /damaged/, other: /no bytes/, huge: /no bytes/, rows: /says 2147483648 rows/, width: /2147483648 dimensions/, zero: /0 dimensions/,
    otherModel: /has vectors of the model "one", not of "two"/, stored: /damaged/,
  };
  assert.deepEqual(Object.keys(said).sort(), Object.keys(reasons).sort());
  for (const [name, why] of Object.entries(reasons)) {
    assert.match(said[name], why, name);
    assert.ok(!said[name].includes("\n"));
  }
});

test("a worker that dies rejects what waits, and what follows says what to do", async () => {
  await page.evaluate(async (url) => {
    window.model = await window.kiln.Embedder.load(url, { device: "cpu", workers: 1 });
    window.index = await window.kiln.Index.create({ dimensions: 2 });
    const many = Array.from({ length: 500 }, (_, at) => `${at} ${"ships ".repeat(100)}`);
    const said = (promise) => promise.then(() => "it worked", (error) => `${error.name}: ${error.message}`);
    // A short one would be answered in between.
    window.waiting = Promise.all([said(window.model.embed(many)), said(window.model.embed(many))]);
  }, MINI);
  const throws = () => setTimeout(() => { throw new Error("boom"); });
  await Promise.all(page.workers().map((worker) => worker.evaluate(throws)));
  const found = await page.evaluate(async (url) => {
    const said = (promise) => promise.then(() => "it worked", (error) => `${error.name}: ${error.message}`);
    const waiting = await window.waiting;
    const after = [await said(window.model.embed("a")), await said(window.index.add([{ id: 1, vector: [1, 0] }]))];
    const model = await window.kiln.Embedder.load(url, { device: "cpu" });
    return { waiting, after, again: (await model.embed("a")).length };
  }, MINI);
  for (const said of [...found.waiting, ...found.after]) assert.match(said, /^WorkerError: the worker of kiln-embed failed: .*boom; load the model, or the index, again$/);
  assert.equal(found.again, 384);
});

test("a core that traps is used no more", async () => {
  const found = await page.evaluate(async (url) => {
    const model = await window.kiln.Embedder.load(url, { device: "cpu", worker: false });
    const core = await import("/pkg/relaxed/kiln_wasm.js");
    const { begin } = core.Model.prototype;
    core.Model.prototype.begin = () => { throw new WebAssembly.RuntimeError("unreachable"); };
    const said = () => model.embed("a").then(() => "it worked", (error) => `${error.name}: ${error.message}`);
    const first = await said();
    core.Model.prototype.begin = begin;
    return [first, await said()];
  }, MINI);
  for (const said of found) assert.match(said, /^WorkerError: kiln-embed broke off \(unreachable\): .*load the model, or the index, again/);
});

test("a core that breaks off in the midst of a run says so, and keeps nobody waiting", async () => {
  const found = await page.evaluate(async (url) => {
    const model = await window.kiln.Embedder.load(url, { device: "cpu", worker: false });
    const { memory } = await (await import("/pkg/relaxed/kiln_wasm.js")).default();
    // None is left for the states of a batch.
    memory.grow(65536 - memory.buffer.byteLength / 65536);
    const texts = Array.from({ length: 16 }, (_, at) => `${at} ${"ships ".repeat(500)}`);
    const said = (text) => model.embed(text, { batchTokens: 65536 }).then(() => "it worked", (error) => `${error.name}: ${error.message}`);
    return Promise.all([said(texts), said("a")]);
  }, MINI);
  for (const said of found) assert.match(said, /^WorkerError: kiln-embed broke off \(.*load the model, or the index, again/);
});

test("a core that could not be fetched is fetched again", async () => {
  server.answers.set("/pkg/relaxed/kiln_wasm_bg.wasm", says(503, "text/plain"));
  assert.ok((await load(MINI, { worker: false })).error);
  server.mend();
  near(await load(MINI, { worker: false }), mini[0]);
});

test("messages of strangers change nothing", async () => {
  const other = await context.newPage();
  await other.goto(`${server.url.replace("127.0.0.1", "localhost")}/page/page.html`);
  const [opened] = await Promise.all([
    context.waitForEvent("page"),
    other.evaluate((url) => void (window.opened = window.open(url)), `${server.url}/page/page.html`),
  ]);
  await opened.waitForFunction(() => window.kiln);
  const errors = [];
  opened.on("pageerror", (error) => errors.push(error));
  await opened.evaluate((url) => window.kiln.Embedder.load(url, { device: "cpu" }).then((model) => (window.model = model)), MINI);
  await other.evaluate(() => {
    for (const message of [{ id: 0, result: 1 }, { id: 0, abort: true }, { action: "open" }, { port: 1 }, null, 7]) window.opened.postMessage(message, "*");
  });
  assert.equal(await opened.evaluate(async () => (await window.model.embed("a")).length), 384);
  assert.deepEqual(errors, []);
});
