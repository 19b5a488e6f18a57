// What of kiln-embed needs no browser, in Node: names, lengths, arguments, downloads from a server that lies, and the order of
// what a trainer is asked for. By tests/browser.sh, or alone: node --test tests/browser/unit.test.mjs

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { serialize } from "node:v8";
import { gzipSync } from "node:zlib";
import training from "../../wasm/addons/train/index.js";
import webgpu from "../../wasm/addons/webgpu/index.js";
import { VERSION, addOn } from "../../wasm/js/addons.js";
import { LocalCalls } from "../../wasm/js/calls.js";
import * as check from "../../wasm/js/checks.js";
import { Engine } from "../../wasm/js/engine.js";
import { modelFiles } from "../../wasm/js/files.js";
import { Embedder, Reranker } from "../../wasm/js/index.js";
import { prompted } from "../../wasm/js/integrations/prompts.js";
import { partOf } from "../../wasm/js/kept.js";
import { said } from "../../wasm/js/lengths.js";
import { fileAddress, folderAddress, sourceAddress } from "../../wasm/js/names.js";
import { indexes } from "../../wasm/js/node/store.js";
import { platform } from "../../wasm/js/platform.js";
import { Trainer } from "../../wasm/js/trainer.js";
import { serve } from "./server.mjs";

test("a file's name stays inside the folder", () => {
  const root = folderAddress("https://example.org/models/a b?key=1#here");
  assert.equal(root.href, "https://example.org/models/a%20b/?key=1#here");
  for (const [name, expected] of [
    ["config.json", "config.json"],
    ["1_Pooling/config.json", "1_Pooling/config.json"],
    ["wörter +&;=@.json", "w%C3%B6rter%20%2B%26%3B%3D%40.json"],
    ["...", "..."],
  ]) {
    assert.equal(fileAddress(name, root, "kiln.json"), `https://example.org/models/a%20b/${expected}?key=1`);
  }
  for (const name of [
    "..", ".", "../x", "a/../../x", "a/./b", "%2e%2e/x", "%2E%2e/%2e%2e/x", ".%2e/x", "%252e%252e/x", "a%2f..%2fx", "..\\x", "a\\..\\..\\x", "\\\\host\\x",
    "/x", "//host/x", "a//b", "a/", "", "https://host/x", "HTTPS:x", "data:text/html,x", "javascript:alert(1)", "x?y", "x#y", "a\tb", "a\nb", "\0", "..\u007f", "\ud800", "x\udfff.json",
    "．．/．．:", undefined, null, 7, {}, ["config.json"],
  ]) {
    assert.throws(() => fileAddress(name, root, "kiln.json"), (error) => /^kiln\.json names .*, which is no path inside the model$/.test(error.message), String(name));
  }
});

test("a source is an address that files lie under", () => {
  globalThis.location = { href: "https://example.org/page/" };
  assert.equal(sourceAddress("../models/x.kiln#y").href, "https://example.org/models/x.kiln");
  for (const source of ["data:application/json,{}", "javascript:alert(1)", "blob:https://example.org/1-2", "http://[", undefined, null, 7, {}, () => {}]) {
    assert.throws(() => sourceAddress(source), { name: "TypeError" }, String(source));
  }
  delete globalThis.location;
});

const bytes = (text) => new TextEncoder().encode(text);

/** A .kiln file's beginning, with such a header. */
function kiln(header, size) {
  const json = bytes(typeof header === "string" ? header : JSON.stringify(header));
  const file = new Uint8Array(48 + json.length);
  file.set(bytes("KILN\x01\0\0\0"));
  new DataView(file.buffer).setBigUint64(8, BigInt(size ?? json.length), true);
  file.set(json, 48);
  return file;
}

function safetensors(header, size) {
  const json = bytes(JSON.stringify(header));
  const file = new Uint8Array(8 + json.length);
  new DataView(file.buffer).setBigUint64(0, BigInt(size ?? json.length), true);
  file.set(json, 8);
  return file;
}

test("a file says how long it is, and what it is not", () => {
  const whole = kiln({ files: [{ offset: 128, bytes: 1000 }, { offset: 64, bytes: 10 }] });
  assert.deepEqual(said("/m.kiln", whole), { length: 1128 });
  assert.deepEqual(said("/m.kiln", whole.subarray(0, 3)), { needs: 48 });
  assert.deepEqual(said("/m.kiln", whole.subarray(0, 60)), { needs: whole.length });
  const tensors = safetensors({ __metadata__: { a: "b" }, x: { data_offsets: [0, 12] }, y: { data_offsets: [12, 40] } });
  assert.deepEqual(said("/model.safetensors", tensors), { length: tensors.length + 40 });
  assert.deepEqual(said("/model.safetensors", new Uint8Array()), { needs: 8 });
  for (const file of ["PK\x03\x04", Uint8Array.of(0x80, 2)]) assert.deepEqual(said("/pytorch_model.bin", Buffer.from(file)), { most: 2 ** 32 });
  assert.deepEqual(said("/pytorch_model.bin", new Uint8Array()), { needs: 1 });
  assert.deepEqual(said("/config.json", bytes(" {")), { most: 2 ** 28 });
  assert.deepEqual(said("/config.json", bytes("\ufeff[")), { most: 2 ** 28 });
  assert.deepEqual(said("/config.json", bytes(" ")), { needs: 2 });
  for (const [path, file, why] of [
    ["/m.kiln", bytes("<!doctype html>"), /begins with "<!doctype html>"/],
    ["/m.kiln", kiln({ files: [] }, 2 ** 21), /header of 2097152 bytes/],
    ["/m.kiln", kiln({ files: [] }, 2n ** 64n - 1n), /header of 18446744073709552000 bytes/],
    ["/m.kiln", kiln("no JSON"), /no JSON/],
    ["/m.kiln", kiln("null"), /./],
    ["/m.kiln", kiln({ files: {} }), /names no files/],
    ["/m.kiln", kiln({ files: [null] }), /without an end/],
    ["/m.kiln", kiln({ files: [{ offset: -9, bytes: 3 }] }), /without an end/],
    ["/m.kiln", kiln({ files: [{ offset: "1", bytes: 3 }] }), /without an end/],
    ["/m.kiln", kiln({ files: [{ offset: 2 ** 53, bytes: 3 }] }), /without an end/],
    ["/x.safetensors", bytes("<!doctype html>"), /begins with "<!doctype html>"/],
    ["/x.safetensors", safetensors({ x: { data_offsets: [0, 1e300] } }), /without an end/],
    ["/x.safetensors", safetensors({ x: 7 }), /without an end/],
    ["/pytorch_model.bin", bytes("<html>"), /begins with "<html>", as no file of PyTorch's does/],
    ["/config.json", bytes("<html>"), /no JSON: it begins with "<html>"/],
    ["/config.json", new Uint8Array(64), /no JSON/],
    ["/config.json", bytes(" ".repeat(64)), /no JSON/],
  ]) {
    assert.throws(() => said(path, file), (error) => why.test(error.message) && !error.message.includes("\n"), `${path} ${why}`);
  }
});

test("arguments are what they should be", () => {
  const vector = (value) => check.vector("the query", value, 2);
  for (const [wrong, name, why] of [
    [() => check.texts("texts", undefined), "TypeError", "texts is undefined, neither a string nor a list of strings"],
    [() => check.texts("texts", "ab"), "TypeError", 'texts is "ab", not a list of strings'],
    [() => check.texts("texts", new String("ab")), "TypeError", 'texts is "ab", not a list of strings'],
    [() => check.texts("texts", new Float32Array(2)), "TypeError", "texts[0] is 0, not a string"],
    [() => check.texts("texts", Promise.resolve(["a"])), "TypeError", "texts is an object, neither a string nor a list of strings"],
    [() => check.texts("texts", ["a", null]), "TypeError", "texts[1] is null, not a string"],
    [() => check.texts("texts", ["a", , "b"]), "TypeError", "texts[1] is undefined, not a string"],
    [() => check.texts("texts", [{}]), "TypeError", "texts[0] is an object, not a string"],
    [() => check.texts("texts", [["a"]]), "TypeError", "texts[0] is a list, not a string"],
    [() => check.texts("texts", [Symbol("a")]), "TypeError", "texts[0] is a symbol, not a string"],
    [() => check.texts("texts", [Object.create(null)]), "TypeError", "texts[0] is an object, not a string"],
    [() => check.texts("texts", ["x".repeat(2 ** 26 + 1)]), "RangeError", "texts[0] has 67108865 characters, more than 67108864"],
    ...[NaN, -1, 0, 1.5, Infinity, 2 ** 16 + 1].map((value) => [() => check.embedOptions({ batchTokens: value }, 384), "RangeError", `batchTokens is ${value}, not a whole number from 1 to 65536`]),
    ...[NaN, -1, 0, 1.5].map((value) => [() => check.embedOptions({ dimensions: value }, 384), "RangeError", `dimensions is ${value}, not a whole number from 1 on`]),
    ...[385, 1e9, Infinity, 2 ** 32 + 5].map((value) => [() => check.embedOptions({ dimensions: value }, 384), "RangeError", `${value} dimensions asked of a model that gives 384`]),
    [() => check.embedOptions({ dimensions: "32" }, 384), "TypeError", 'dimensions is "32", not a number'],
    [() => check.embedOptions({ normalize: 1 }, 384), "TypeError", "normalize is 1, neither true nor false"],
    [() => check.embedOptions({ prompt: 7 }, 384), "TypeError", "prompt is 7, not a string"],
    [() => check.embedOptions({ promptText: "x".repeat(2 ** 16 + 1) }, 384), "RangeError", "promptText has 65537 characters, more than 65536"],
    [() => check.listeners({ onProgress: "f" }), "TypeError", 'onProgress is "f", not a function'],
    [() => check.listeners({ signal: {} }), "TypeError", "signal is an object, not an AbortSignal"],
    [() => vector([1]), "RangeError", "the query has 1 dimensions, the index has 2"],
    [() => vector("ab"), "TypeError", 'the query is "ab", not a list of numbers'],
    [() => vector(undefined), "TypeError", "the query is undefined, not a list of numbers"],
    [() => vector([1, NaN]), "RangeError", "the query has numbers that are not finite"],
    [() => vector([1, "x"]), "TypeError", 'the query has "x" in place 1, not a number'],
    [() => vector(["1", "0"]), "TypeError", 'the query has "1" in place 0, not a number'],
    [() => vector([1, null]), "TypeError", "the query has null in place 1, not a number"],
    [() => vector([, 1]), "TypeError", "the query has undefined in place 0, not a number"],
    [() => vector([[1], [0]]), "TypeError", "the query has a list in place 0, not a number"],
    [() => vector(new BigInt64Array(2)), "TypeError", "the query has 0 in place 0, not a number"],
    [() => vector([1e300, 1]), "RangeError", "the query has numbers that are not finite"],
    [() => vector([1e30, 1]), "RangeError", "the query has a length of 1.0e+30, too large to compare"],
    [() => vector([0, 0]), "RangeError", "the query has length 0, so nothing is like it"],
    [() => vector({ length: 1e12 }), "RangeError", "the query has 1000000000000 dimensions, the index has 2"],
    [() => check.ids("ab"), "TypeError", 'ids are "ab", not a list of ids'],
    [() => check.ids([NaN]), "TypeError", "an id is NaN, neither a string nor a finite number"],
    [() => check.ids([{}]), "TypeError", "an id is an object, neither a string nor a finite number"],
  ]) {
    assert.throws(wrong, { name, message: why });
  }
  const usual = { device: "auto", workers: "auto", threads: "auto", weights: "kept" };
  for (const wrong of [{ threads: NaN }, { threads: 0 }, { threads: -1 }, { threads: 1e9 }, { threads: "2" }, { workers: 1.5 }, { workers: 65 }, { weights: "int3" }, { weights: "bf16" }, { weights: 7 }, { weights: "int8:-1" }, { weights: "int8:6" }, { weights: "int4:2" }, { device: "abacus" }]) {
    assert.throws(() => check.loadOptions({ ...usual, ...wrong }), { name: "RangeError" }, JSON.stringify(wrong));
  }
  for (const right of [{}, { threads: 3, workers: 64 }, { weights: "int8:64" }, { weights: "int8:4" }, { weights: "int8" }, { weights: "int4:channel" }, { weights: "f32" }]) check.loadOptions({ ...usual, ...right });
  assert.deepEqual(check.embedOptions({ prompt: null, dimensions: undefined, batchTokens: 64 }, 384), { prompt: undefined, promptText: undefined, dimensions: undefined, normalize: undefined, batchTokens: 64 });
  assert.deepEqual([...vector([3, 4])], [3, 4]);
  assert.deepEqual(check.texts("texts", new Set(["a", "\ud800"])), ["a", "\ud800"]);
});

test("the package and its add-ons have one version, and an add-on's builds are files in it", () => {
  const read = (path) => JSON.parse(readFileSync(join(import.meta.dirname, "../../wasm", path)));
  assert.equal(read("package.json").version, VERSION);
  for (const [folder, one] of [["webgpu", webgpu], ["train", training]]) {
    const { name, version, peerDependencies, files } = read(`addons/${folder}/package.json`);
    assert.deepEqual([name, version, peerDependencies], [one.package, VERSION, { "kiln-embed": VERSION }]);
    assert.equal(one.version, VERSION);
    for (const [build, { js, wasm }] of Object.entries(one.builds)) {
      assert.deepEqual([js, wasm], ["kiln_wasm.js", "kiln_wasm_bg.wasm"].map((file) => new URL(`../../wasm/addons/${folder}/${build}/${file}`, import.meta.url).href));
      assert.ok(files.includes(`${build}/`), build);
    }
  }
});

test("an add-on is what its package exports, of this version", () => {
  assert.deepEqual(addOn("training", training), training.builds);
  for (const none of [undefined, null]) assert.equal(addOn("webgpu", none), undefined);
  const not = (what) => `webgpu is ${what}, not the default export of kiln-embed-webgpu; import webgpu from "kiln-embed-webgpu"`;
  for (const [value, name, message] of [
    [true, "TypeError", not("true")],
    ["kiln-embed-webgpu", "TypeError", not('"kiln-embed-webgpu"')],
    [{ default: webgpu }, "TypeError", not("an object")],
    [training, "TypeError", not('"kiln-embed-train"')],
    [{ ...webgpu, builds: undefined }, "TypeError", not("an object without the build webgpu")],
    [{ ...webgpu, builds: { webgpu: { js: webgpu.builds.webgpu.js } } }, "TypeError", not("an object without the build webgpu")],
    [{ ...webgpu, version: "0.0.9" }, "RangeError", `webgpu is kiln-embed-webgpu "0.0.9", and this is kiln-embed ${VERSION}; install kiln-embed-webgpu@${VERSION}`],
    [{ ...webgpu, version: undefined }, "RangeError", `webgpu is kiln-embed-webgpu undefined, and this is kiln-embed ${VERSION}; install kiln-embed-webgpu@${VERSION}`],
  ]) {
    assert.throws(() => addOn("webgpu", value), { name, message });
  }
});

/** Cache Storage as far as it is used. */
class Store {
  held = new Map();
  open = async () => this;
  match = async (url) => this.held.get(url)?.clone();
  put = async (url, response) => void this.held.set(url, new Response(await response.arrayBuffer(), { headers: response.headers }));
  delete = async (url) => this.held.delete(url);
  keys = async () => [...this.held.keys()].map((url) => ({ url }));
}

let server, store;
before(async () => (server = await serve({})));
after(() => server.close());
beforeEach(() => {
  globalThis.caches = store = new Store();
  globalThis.location = { href: `${server.url}/page/`, origin: server.url };
});
afterEach(() => server.mend());

const BODY = kiln({ files: [{ offset: 128, bytes: 100_000 }] });
const FILE = new Uint8Array(128 + 100_000).fill(9);
FILE.set(BODY);

const MODEL = "/models/m.kiln";
const load = async (path = MODEL, options = {}) => {
  const progress = [];
  const found = await modelFiles(server.url + path, { onProgress: (now) => progress.push(now), ...options });
  return { ...found, progress };
};
/** A server that sends some bytes of the file and breaks off, then answers the second request by `then`. */
function brokenOff(then, { headers = { etag: '"1"' }, sent = 50_000 } = {}) {
  const seen = [];
  server.answers.set(MODEL, (request, response) => {
    seen.push(request.headers);
    if (seen.length === 2) return then(request, response);
    response.writeHead(200, { ...headers, "content-length": FILE.length });
    if (seen.length > 1) return response.end(FILE);
    response.write(FILE.subarray(0, sent), () => setTimeout(() => request.socket.destroy(), 50));
  });
  return seen;
}
const rest = (from, { etag = '"1"', range = `bytes ${from}-${FILE.length - 1}/${FILE.length}`, body = FILE.subarray(from), ...more } = {}) => (request, response) => {
  const headers = { ...(etag && { etag }), ...(range && { "content-range": range }), ...more };
  response.writeHead(206, { "content-length": body.length, ...headers });
  response.end(body);
};
const start = (headers) => Number(/^bytes=(\d+)-$/.exec(headers.range)[1]);

test("the rest of a download is joined where it is the rest", async () => {
  const seen = brokenOff((request, response) => rest(start(request.headers))(request, response));
  assert.deepEqual((await load()).kiln, FILE);
  assert.equal(seen.length, 2);
  assert.equal(seen[1]["if-range"], '"1"');
  assert.match(seen[1].range, /^bytes=[1-9]\d*-$/);
});

for (const [what, then] of [
  ["of another version", (from) => rest(from, { etag: '"2"' })],
  ["of another start", (from) => rest(from, { range: `bytes 0-${FILE.length - 1}/${FILE.length}`, body: FILE })],
  ["of another length", (from) => rest(from, { range: `bytes ${from}-${FILE.length}/${FILE.length + 1}` })],
  ["of another end", (from) => rest(from, { range: `bytes ${from}-${FILE.length + 8}/${FILE.length}` })],
  ["without a range", (from) => rest(from, { range: null })],
  ["with a range that says nothing", (from) => rest(from, { range: "bytes lots" })],
  ["that is compressed", (from) => rest(from, { "content-encoding": "identity" })],
]) {
  test(`a 206 ${what} is not joined`, async () => {
    const seen = brokenOff((request, response) => then(start(request.headers))(request, response));
    assert.deepEqual((await load()).kiln, FILE);
    assert.equal(seen.length, 3);
    assert.equal(seen[2].range, undefined);
  });
}

test("a 206 whose version need not be said again is joined; by a date too", async () => {
  const date = "Tue, 01 Oct 2024 10:00:00 GMT";
  const seen = brokenOff((request, response) => rest(start(request.headers), { etag: null })(request, response), { headers: { etag: 'W/"1"', "last-modified": date } });
  assert.deepEqual((await load()).kiln, FILE);
  assert.equal(seen.length, 2);
  assert.equal(seen[1]["if-range"], date);
});

test("a server that ignores ranges, or has less by now, gives the whole file", async () => {
  let seen = brokenOff((request, response) => response.writeHead(200, { etag: '"2"' }).end(FILE));
  assert.deepEqual((await load()).kiln, FILE);
  assert.equal(seen.length, 2);
  store.held.clear();
  seen = brokenOff((request, response) => response.writeHead(416).end());
  assert.deepEqual((await load()).kiln, FILE);
  assert.equal(seen.length, 3);
});

test("a 206 that nobody asked for is no file", async () => {
  server.answers.set(MODEL, rest(10));
  await assert.rejects(load(), /the server says 206/);
  assert.equal(store.held.size, 0);
});

test("lengths: a body that is longer or shorter than said, or has no end", async () => {
  let requests = 0;
  const endless = (beginning, headers = {}) => (request, response) => {
    requests++;
    response.writeHead(200, headers);
    const more = () => {
      while (!response.destroyed && response.write(Buffer.alloc(1 << 16, 32)));
    };
    response.on("drain", more).write(beginning);
    more();
  };
  for (const [path, answer, why] of [
    [MODEL, endless(BODY), /more bytes come than the 100128/],
    [MODEL, endless(FILE, { "content-encoding": "identity" }), /more bytes come than the 100128/],
    [MODEL, endless("<p>"), /begins with "<p>/],
    [MODEL, (request, response) => response.end(FILE.subarray(0, 500)), /cut short: it has 500 bytes, and should have 100128/],
    [MODEL, (request, response) => response.end(FILE.subarray(0, 20)), /cut short: it has 20 bytes, and should have 48 at least/],
    [MODEL, (request, response) => response.end(), /cut short/],
  ]) {
    server.answers.set(path, answer);
    requests = 0;
    await assert.rejects(load(path), why);
    assert.ok(requests <= 1);
    assert.equal(store.held.size, 0);
  }
});

/** What a page hears of another site whose server says nothing of what it may: not of compression, ranges or tags. */
function fromElsewhere(run) {
  const { fetch: former } = platform;
  run.after(() => (platform.fetch = former));
  const told = ["cache-control", "content-language", "content-length", "content-type", "expires", "last-modified", "pragma"];
  platform.fetch = async (url, options) => {
    const response = await fetch(url, options);
    const headers = new Headers([...response.headers].filter(([name]) => told.includes(name)));
    return Object.defineProperties(response, { headers: { value: headers }, type: { value: "cors" } });
  };
  globalThis.location = { href: "https://page.example/", origin: "https://page.example" };
}

const DATE = "Tue, 01 Oct 2024 10:00:00 GMT";

test("a file that another site compresses on the way is whole, and its length that of what comes", async (run) => {
  fromElsewhere(run);
  const zipped = (file, more) => (request, response) => {
    const body = gzipSync(file);
    response.writeHead(200, { "content-encoding": "gzip", "content-length": body.length, "last-modified": DATE, ...more }).end(body);
  };
  server.answers.set(MODEL, zipped(FILE));
  const { kiln, progress } = await load();
  assert.deepEqual(kiln, FILE);
  for (const { loaded, total } of progress.filter(({ stage }) => stage === "download")) assert.ok(total === FILE.length && loaded <= total, `${loaded} of ${total}`);
  // Compressed, two bytes are more.
  folder({ "kiln.json": JSON.stringify({ format: 1, files: { "config.json": { bytes: 2 } } }) });
  server.answers.set("/models/f/config.json", zipped("{}"));
  assert.deepEqual(await loadFolder(), ["kiln.json", "config.json"]);
  // What it is said to have still holds.
  store.held.clear();
  server.answers.set("/models/f/config.json", zipped("{} "));
  await assert.rejects(loadFolder(), /more bytes come than the 2 /);
});

test("a compressed download that breaks off begins anew, and another site's that is not goes on", async (run) => {
  fromElsewhere(run);
  const body = gzipSync(Uint8Array.from(FILE, (byte, at) => (at < 128 ? byte : (at * 2654435761) >>> 24)));
  const ranges = [];
  server.answers.set(MODEL, (request, response) => {
    ranges.push(request.headers.range);
    response.writeHead(200, { "content-encoding": "gzip", "content-length": body.length, "last-modified": DATE });
    if (ranges.length > 1) return response.end(body);
    response.write(body.subarray(0, body.length >> 1), () => setTimeout(() => request.socket.destroy(), 50));
  });
  assert.equal((await load()).kiln.length, FILE.length);
  assert.deepEqual(ranges, [undefined, undefined]);
  store.held.clear();
  const date = { "last-modified": DATE };
  const seen = brokenOff((request, response) => rest(start(request.headers), date)(request, response), { headers: date });
  assert.deepEqual((await load()).kiln, FILE);
  assert.deepEqual([seen.length, "if-range" in seen[1]], [2, false]);
});

/** A folder's files; what is not among them is answered with 404. */
function folder(files) {
  const seen = [];
  const all = { "kiln.json": undefined, "config.json": "{}", "tokenizer.json": "{}", ...files };
  for (const name of [...Object.keys(all), "tokenizer_config.json", "special_tokens_map.json", "config_sentence_transformers.json", "sentence_bert_config.json", "modules.json", "model.safetensors", "model.safetensors.index.json"]) {
    server.answers.set(`/models/f/${name}`, (request, response) => {
      if (request.method !== "HEAD") seen.push(name);
      const body = all[name];
      if (typeof body === "function") return body(request, response);
      response.writeHead(body === undefined ? 404 : 200, body === undefined ? {} : { "content-length": Buffer.byteLength(body), etag: '"1"' }).end(body);
    });
  }
  return { seen, all };
}
const WEIGHTS = safetensors({ x: { data_offsets: [0, 0] } });
const loadFolder = async (options) => (await load("/models/f", options)).files.map(([name]) => name);

test("only 404 and 410 say that a file is not there", async () => {
  const plain = { "model.safetensors": WEIGHTS, "modules.json": "[]" };
  const says = (status, type = "text/plain", body = "no") => (request, response) => response.writeHead(status, { "content-type": type }).end(body);
  for (const [answer, why] of [
    [says(403), /modules\.json: the server says 403 .*only 404 says that it is not/],
    [says(401), /says 401/],
    [says(204), /says 204/],
    [says(200, "text/html; charset=utf-8", "<p>Please log in</p>"), /modules\.json is a web page, not a model file; check the address/],
    [says(200, "application/xhtml+xml"), /is a web page/],
    [says(200, "text/plain", "<p>Please log in</p>"), /modules\.json is not the file that it should be: it is no JSON: it begins with "<p>Please log in<\/p>"/],
    [says(200, "application/json", "{}"), /modules\.json has no list of modules/],
    [says(200, "application/json", "[7]"), /has no list of modules/],
    [says(200, "application/json", '[{"path": "../x"}]'), /modules\.json names "\.\.\/x"/],
    [(request, response) => response.writeHead(302, { location: "/login" }).end(), /modules\.json led to http.*\/login, which is a web page/],
  ]) {
    server.answers.set("/login", says(200, "text/html"));
    const { all } = folder({ ...plain, "modules.json": answer });
    await assert.rejects(loadFolder(), why);
    // The next load asks again; where what came was JSON, when it has failed, as Embedder.load does.
    all["modules.json"] = '[{"path": ""}]';
    assert.deepEqual(await loadFolder().catch(() => loadFolder({ fresh: true })), ["modules.json", "config.json", "tokenizer.json", "model.safetensors"]);
    store.held.clear();
  }
  folder({ ...plain, "modules.json": says(410) });
  assert.deepEqual(await loadFolder(), ["config.json", "tokenizer.json", "model.safetensors"]);
});

test("the shards that an index lists are beside it, in either format", async () => {
  for (const [file, shard] of [["model.safetensors", WEIGHTS], ["pytorch_model.bin", "PK"]]) {
    const [one, two] = [1, 2].map((at) => file.replace(".", `-0000${at}-of-00002.`));
    const index = `${file}.index.json`;
    for (const [root, modules] of [["", "[]"], ["0_Transformer/", '[{"path": "0_Transformer"}]']]) {
      // A folder that has nothing but these.
      const own = { "config.json": "{}", "tokenizer.json": "{}", [index]: JSON.stringify({ weight_map: { x: one, y: two, z: one } }), [one]: shard, [two]: shard };
      const inside = Object.fromEntries(Object.entries(own).map(([name, body]) => [root + name, body]));
      const { all } = folder({ "config.json": undefined, "modules.json": modules, ...inside });
      const found = await loadFolder();
      assert.deepEqual(found.filter((name) => name.includes(file.split(".")[0])), [index, one, two].map((name) => root + name));
      store.held.clear();
      all[root + two] = undefined;
      await assert.rejects(loadFolder(), ({ message }) => message.includes(`/${root}${two}: the server says 404`));
      store.held.clear();
      for (const name of ["../x", "%2e%2e/x", 7, { path: two }]) {
        all[root + index] = JSON.stringify({ weight_map: { x: name } });
        await assert.rejects(loadFolder(), /index\.json names .*, which is no path inside the model$/);
        store.held.clear();
      }
      server.mend();
    }
  }
});

test("a pooling head has weights where its settings are Kiln's own, and others' are not asked for", async () => {
  const pooling = (settings) => ({ "1_Pooling/config.json": JSON.stringify(settings), "1_Pooling/model.safetensors": WEIGHTS });
  const modules = '[{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Normalize"}]';
  for (const [settings, expected] of [
    [{ kiln: { mode: "latent_attention", latents: 8 } }, ["1_Pooling/config.json", "1_Pooling/model.safetensors"]],
    [{ pooling_mode_mean_tokens: true }, ["1_Pooling/config.json"]],
  ]) {
    const { seen } = folder({ "modules.json": modules, "model.safetensors": WEIGHTS, ...pooling(settings) });
    assert.deepEqual((await loadFolder()).filter((name) => name.startsWith("1_")), expected);
    assert.deepEqual(seen.filter((name) => name.startsWith("1_")), expected);
    store.held.clear();
  }
});

test("a server that is in trouble is asked again", async () => {
  let times = 0;
  folder({ "model.safetensors": WEIGHTS, "kiln.json": (request, response) => response.writeHead(++times < 3 ? 503 : 404).end() });
  assert.deepEqual(await loadFolder(), ["config.json", "tokenizer.json", "model.safetensors"]);
  assert.equal(times, 3);
});

test("what was not there is asked for again, and missed only where a server says so", async () => {
  const { seen, all } = folder({ "model.safetensors": WEIGHTS });
  await loadFolder();
  assert.deepEqual([...store.held.values()].filter(({ headers }) => headers.has("x-kiln-absent")).length, 6);
  // A login page, or no answer, changes nothing of what a server said before.
  all["modules.json"] = (request, response) => response.writeHead(200, { "content-type": "text/html" }).end("<p>");
  all["kiln.json"] = (request) => request.socket.destroy();
  assert.deepEqual(await loadFolder(), ["config.json", "tokenizer.json", "model.safetensors"]);
  all["kiln.json"] = undefined;
  all["modules.json"] = "[]";
  seen.length = 0;
  assert.deepEqual(await loadFolder(), ["modules.json", "config.json", "tokenizer.json", "model.safetensors"]);
  assert.ok(!seen.includes("config.json") && seen.includes("kiln.json"), "kept files are not fetched");
});

test("a manifest names files of the model only, of the lengths that it gives", async () => {
  const manifest = (files, more) => JSON.stringify({ format: 1, files, ...more });
  const many = Object.fromEntries(Array.from({ length: 1001 }, (_, at) => [`${at}.json`, { bytes: 1 }]));
  for (const [text, why] of [
    [manifest({ "%2e%2e/secret.json": { bytes: 9 } }), /kiln\.json names "%2e%2e\/secret\.json", which is no path inside the model/],
    [manifest({ "//evil.example/x.json": { bytes: 9 } }), /which is no path inside/],
    [manifest({ "config.json": { bytes: 1 } }), /config\.json is not the file that it should be: it has 2 bytes, and is said to have 1/],
    [manifest({ "config.json": { bytes: -1 } }), /gives "config\.json" a length of -1/],
    [manifest({ "config.json": {} }), /a length of undefined/],
    [manifest({ "config.json": null }), /a length of undefined/],
    [manifest(many), /names 1001 files, more than any model has/],
    [manifest("abc"), /kiln\.json has no files/],
    [manifest([]), /has no files/],
    ["[]", /has no files/],
    ["{", /kiln\.json is no JSON/],
  ]) {
    const { seen } = folder({ "kiln.json": text });
    await assert.rejects(loadFolder({ cache: false }), why);
    assert.ok(seen.every((name) => ["kiln.json", "config.json"].includes(name)), `${seen}`);
  }
  // A longer body without a length, in the place of a file that the manifest gives few bytes.
  folder({ "kiln.json": manifest({ "config.json": { bytes: 2 } }), "config.json": (request, response) => response.write("{}  ") && response.end() });
  await assert.rejects(loadFolder(), /more bytes come than the 2 /);
  folder({ "kiln.json": manifest({ "config.json": { bytes: 2 }, "kiln.json": { bytes: 5 } }) });
  assert.deepEqual(await loadFolder(), ["kiln.json", "config.json"]);
  // What a later format has instead is for the core to say.
  folder({ "kiln.json": JSON.stringify({ format: 2, parts: {} }) });
  assert.deepEqual(await loadFolder({ cache: false }), ["kiln.json"]);
});

test("kept bytes with another sum are dropped, and fetched anew once", async () => {
  let requests = 0;
  server.answers.set(MODEL, (request, response) => {
    if (request.method !== "HEAD") requests++;
    response.writeHead(200, { etag: '"1"', "content-length": FILE.length }).end(FILE);
  });
  await load();
  const url = server.url + MODEL;
  const { headers } = await store.match(url);
  const damaged = FILE.slice();
  damaged[70_000] ^= 1;
  await store.put(url, new Response(damaged, { headers }));
  for (const cached of [false, true]) {
    const { kiln, progress } = await load();
    assert.deepEqual(kiln, FILE);
    assert.equal(progress.at(-1).cached, cached);
  }
  assert.equal(requests, 2);
});

test("the kept part of a download is dropped where it is damaged", async () => {
  const stop = new AbortController();
  server.answers.set(MODEL, (request, response) => {
    response.writeHead(200, { etag: '"1"', "content-length": FILE.length });
    response.write(FILE.subarray(0, 50_000));
  });
  const onProgress = () => stop.abort();
  await assert.rejects(modelFiles(server.url + MODEL, { onProgress, signal: stop.signal }), { name: "AbortError" });
  const url = partOf(server.url + MODEL);
  const part = await store.match(url);
  const damaged = new Uint8Array(await part.arrayBuffer());
  assert.ok(damaged.length > 0);
  damaged[damaged.length - 1] ^= 1;
  await store.put(url, new Response(damaged, { headers: part.headers }));
  const ranges = [];
  server.answers.set(MODEL, (request, response) => {
    ranges.push(request.headers.range);
    response.end(FILE);
  });
  assert.deepEqual((await load()).kiln, FILE);
  assert.deepEqual(ranges, [undefined]);
  assert.equal(await store.match(url), undefined);
});

test("a login page that answers for a kept file does not make it forgotten", async () => {
  const answer = (request, response) => response.writeHead(200, { etag: '"1"' }).end(FILE);
  server.answers.set(MODEL, answer);
  await load();
  let asked;
  const question = new Promise((resolve) => (asked = resolve));
  server.answers.set(MODEL, (request, response) => {
    response.writeHead(200, { "content-type": "text/html", etag: '"2"' }).end("<p>");
    asked();
  });
  await load();
  await question;
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.equal(store.held.size, 1);
});

test("a full store, or one that cannot be read, is said once and done without", async (run) => {
  const { warn } = console;
  const said = [];
  console.warn = (text) => said.push(text);
  run.after(() => (console.warn = warn));
  folder({ "model.safetensors": WEIGHTS });
  store.put = async () => {
    throw new DOMException("no room", "QuotaExceededError");
  };
  for (let time = 0; time < 2; time++) assert.equal((await loadFolder()).length, 3);
  assert.equal(said.length, 1);
  assert.match(said[0], /kiln\.json is not kept for the next time: no room/);
  store.match = async () => {
    throw new DOMException("broken", "UnknownError");
  };
  assert.equal((await loadFolder()).length, 3);
  globalThis.caches = { open: () => Promise.reject(new Error("off")) };
  assert.equal((await loadFolder()).length, 3);
  assert.equal(said.length, 1);
});

/** Workers in which a model's vectors are the last number of its bytes; `answer` may say otherwise. Gives what was asked of each. */
function workersWithoutCore(run, { fingerprint = ({ kiln }) => `sum ${kiln.at(-1)}`, device = "cpu", answer } = {}) {
  const { startWorker, hasWorkers } = platform;
  run.after(() => Object.assign(platform, { startWorker, hasWorkers }));
  const started = [];
  platform.startWorker = () => {
    let model;
    const asked = [];
    started.push(asked);
    const first = started.length === 1;
    const does = (action, argument) => {
      const given = answer?.(action, argument, first);
      if (given !== undefined) return given;
      if (action === "open") model = argument;
      if (action !== "embed") return { fingerprint: fingerprint(model), dimensions: 2, device: first ? device : "cpu", threads: 1, prompts: {} };
      return new Float32Array(argument.texts.length * 2).fill((model.kiln ?? model.files[0][1]).at(-1));
    };
    const worker = {
      terminate() {},
      postMessage({ id, action, argument, abort }) {
        if (abort) return;
        asked.push(action);
        setTimeout(() => {
          try {
            worker.onmessage({ data: { id, result: does(action, argument) } });
          } catch ({ name, message }) {
            worker.onmessage({ data: { id, error: { name, message } } });
          }
        }, action === "embed" ? 20 : 0);
      },
    };
    return worker;
  };
  return started;
}
const named = (name, message) => Object.assign(new Error(message), { name });
const MANY = Array.from({ length: 200 }, (_, at) => `text ${at}`);
const kinds = (vectors) => [...new Set(vectors.flatMap((vector) => [...vector]))];
/** The server has a file that ends so from now on, and counts who fetches it. */
function ends(byte) {
  const requests = [];
  const file = FILE.slice();
  file[file.length - 1] = byte;
  server.answers.set(MODEL, (request, response) => {
    if (request.method !== "HEAD") requests.push(request.headers);
    response.writeHead(200, { etag: `"${byte}"`, "content-length": file.length }).end(file);
  });
  return requests;
}

test("a call has vectors of one version of a model, whatever the server has by now", async (run) => {
  const warned = [];
  run.mock.method(console, "warn", (text) => warned.push(text));
  for (const [source, fingerprint, change] of [
    [MODEL, ({ kiln }) => `sum ${kiln.at(-1)}`, ends],
    // One that no kiln.json tells from another of the same shape.
    ["/models/f", () => null, (byte) => folder({ "config.json": `{}${" ".repeat(byte)}`, "model.safetensors": WEIGHTS })],
  ]) {
    const started = workersWithoutCore(run, { fingerprint });
    change(1);
    const model = await Embedder.load(server.url + source, { workers: 3 });
    assert.equal(kinds(await model.embed(MANY)).length, 1);
    assert.deepEqual([started.length, started[1].includes("embed"), warned], [3, true, []]);
    model.dispose();

    const changing = workersWithoutCore(run, { fingerprint });
    const second = await Embedder.load(server.url + source, { workers: 3 });
    change(2);
    store.held.clear();
    assert.equal(kinds(await second.embed(MANY)).length, 1);
    assert.equal(changing.length, 3);
    assert.ok(changing.slice(1).every((asked) => !asked.includes("embed")), JSON.stringify(changing));
    assert.equal(warned.length, 2);
    for (const line of warned.splice(0)) assert.match(line, /^kiln-embed: the model's files are others by now than when it was loaded.*; one worker fewer computes$/);
    second.dispose();
    store.held.clear();
  }
});

test("after a lost GPU a model goes on on the CPU, and not as another version of itself", async (run) => {
  run.mock.method(console, "warn", () => {});
  const lost = (action, argument, first) => {
    if (action === "embed" && first) throw named("DeviceLostError", "the GPU was lost");
  };
  for (const [byte, said] of [[1, undefined], [2, "VersionError"]]) {
    const started = workersWithoutCore(run, { device: "webgpu (a GPU)", answer: lost });
    ends(1);
    const model = await Embedder.load(server.url + MODEL);
    ends(byte);
    store.held.clear();
    const failure = () => model.embed("a").then(() => undefined, ({ name }) => name);
    // It is not asked for once more.
    assert.deepEqual([await failure(), await failure(), started.length], [said, said, 2]);
    assert.match(model.device, said ? /^webgpu/ : /^cpu/);
    model.dispose();
    store.held.clear();
  }
});

test("what is kept is fetched anew only where it may be to blame, and without a network it is what is told of", async (run) => {
  const opens = (error) => workersWithoutCore(run, { answer: (action) => { if (action === "open") throw error; } });
  const requests = ends(1);
  await load();
  for (const [error, count] of [[named("RangeError", "no reranker"), 0], [named("DeviceError", "no GPU"), 0], [named("Error", "damaged"), 1]]) {
    requests.length = 0;
    opens(error);
    await assert.rejects(Embedder.load(server.url + MODEL), { name: error.name, message: error.message });
    assert.equal(requests.length, count, error.message);
  }
  opens(named("Error", "a tensor is missing"));
  server.answers.set(MODEL, (request, response) => response.writeHead(403).end());
  await assert.rejects(Embedder.load(server.url + MODEL), /^Error: a tensor is missing/);
});

test("what a load without a cache adds is not kept either, and a reranker takes no adapters", async (run) => {
  workersWithoutCore(run, { answer: (action) => (action === "addAdapter" ? {} : undefined) });
  ends(1);
  for (const [name, body] of [["adapter_config.json", "{}"], ["adapter_model.safetensors", WEIGHTS]]) {
    server.answers.set(`/models/lora/${name}`, (request, response) => response.writeHead(200, { etag: '"1"' }).end(body));
  }
  for (const [cache, kept] of [[false, 0], [true, 3]]) {
    const model = await Embedder.load(server.url + MODEL, { cache });
    await model.addAdapter("far", `${server.url}/models/lora`);
    assert.equal(store.held.size, kept);
    model.dispose();
  }
  await assert.rejects(Reranker.load(server.url + MODEL, { adapter: {} }), { name: "TypeError", message: /takes no adapters/ });
});

test("workers are told where an add-on's builds are, and what needs one that is missing fetches nothing", async (run) => {
  const told = [];
  const answer = (action, { addOn }) => {
    told.push([action, structuredClone(addOn)]);
    return action === "openTrainer" ? { kind: "lora" } : undefined;
  };
  workersWithoutCore(run, { answer });
  const requests = ends(1);
  await assert.rejects(Embedder.load(server.url + MODEL, { device: "webgpu" }), { name: "TypeError", message: /needs the package kiln-embed-webgpu/ });
  await assert.rejects(Embedder.load(server.url + MODEL, { webgpu: training }), { name: "TypeError" });
  assert.equal(requests.length, 0);
  const model = await Embedder.load(server.url + MODEL, { webgpu });
  await assert.rejects(model.trainer(), { name: "TypeError", message: /needs the package kiln-embed-train/ });
  const trainer = await model.trainer({ training });
  assert.deepEqual(told, [["open", webgpu.builds], ["openTrainer", training.builds]]);
  for (const one of [trainer, model]) one.dispose();
});

test("calls in this thread end at once, also one that never would, and an aborted load is none", async (run) => {
  let over;
  const frees = run.mock.method(Engine.prototype, "free", () => {});
  const runs = run.mock.method(Engine.prototype, "run", async (action) => new Promise((resolve) => (over = () => resolve([action]))));
  const calls = new LocalCalls();
  const waiting = [calls.call("embed"), calls.call("lens")].map((call) => call.catch((error) => error.message));
  await new Promise((later) => setTimeout(later));
  calls.end(new Error("the embedder is disposed"));
  assert.deepEqual(await Promise.all(waiting), Array(2).fill("the embedder is disposed"));
  await assert.rejects(calls.call("embed"), /the embedder is disposed/);
  assert.equal(runs.mock.callCount(), 1);

  // The core comes, and the model is opened, when nobody waits for it any more.
  const stop = new AbortController();
  const loading = Embedder.load(kiln({ files: [] }), { worker: false, signal: stop.signal });
  while (runs.mock.callCount() < 2) await new Promise((later) => setTimeout(later));
  stop.abort();
  over();
  await assert.rejects(loading, { name: "AbortError" });
  while (frees.mock.callCount() < 1) await new Promise((later) => setTimeout(later));
});

test("in Node a saved index that cannot be read hides no other", async (run) => {
  const data = mkdtempSync(join(tmpdir(), "kiln-unit-"));
  const { XDG_DATA_HOME } = process.env;
  process.env.XDG_DATA_HOME = data;
  run.after(() => {
    XDG_DATA_HOME === undefined ? delete process.env.XDG_DATA_HOME : (process.env.XDG_DATA_HOME = XDG_DATA_HOME);
    rmSync(data, { recursive: true });
  });
  assert.deepEqual(await indexes.names(), []);
  const value = { bytes: new Uint8Array([1, 2]), entries: [["a", new Date(5)]] };
  const names = ["a", "b\n\ud800", "long ".repeat(20_000)];
  for (const name of names) await indexes.save(name, value);
  for (const name of names) assert.deepEqual(await indexes.load(name), value);
  const folder = join(data, "kiln-embed/indexes");
  const [file] = readdirSync(folder);
  // As it was written at first.
  writeFileSync(join(folder, "old.index"), serialize({ name: "old", value }));
  for (const [name, bytes] of [["text", "no index"], ["none", ""], ["head", '{"name":'], ["number", serialize(7)]]) writeFileSync(join(folder, `${name}.index`), bytes);
  mkdirSync(join(folder, "folder.index"));
  assert.deepEqual(await indexes.names(), [...names, "old"].sort());
  writeFileSync(join(folder, file), '{"name":"x"}');
  assert.equal((await indexes.names()).length, 3);
});

test("prompts of queries and documents are their own, or none", () => {
  const none = { promptText: "" };
  for (const [names, defaultPrompt, query, document] of [
    [["query", "document"], null, { prompt: "query" }, { prompt: "document" }],
    [["query", "corpus", "passage"], "query", { prompt: "query" }, { prompt: "passage" }],
    [["query"], "query", { prompt: "query" }, none],
    [["passage"], "passage", none, { prompt: "passage" }],
    [[], null, none, none],
    [["sts"], "sts", none, none],
    // The default of the same side, by another name.
    [["retrieval.query"], "retrieval.query", {}, none],
    [["search_document"], "search_document", none, {}],
  ]) {
    const info = { prompts: Object.fromEntries(names.map((name) => [name, `${name}: `])), defaultPrompt };
    assert.deepEqual(prompted({ info }), { query, document }, JSON.stringify(info));
    assert.deepEqual(prompted({ info }, { query: {} }), { query: {}, document });
  }
});

/**
 * A trainer whose runs report `states`, what it asked of the core and of the store of states, and which runs it began; `fails`
 * names what they cannot do.
 */
function trainerWithoutCore(run, { states = [], fails = [] } = {}) {
  const [asked, begun, saved, warned] = [[], [], [], []];
  const ask = async (name, what = name) => {
    asked.push(what);
    await new Promise((later) => setTimeout(later, 5));
    if (fails.includes(what)) throw new Error(`${name} failed`);
  };
  const call = async (action, argument, { onProgress } = {}) => {
    await ask(action, action === "teachBegin" ? `begin ${argument.lessons[0].query}` : action);
    if (action === "teachBegin") begun.push(argument);
    if (action === "teach") for (const state of states) onProgress({ step: 10, state });
    return action === "teachBegin" ? [2, 0, 0] : { kind: "lora", files: [] };
  };
  const { states: former } = platform;
  run.after(() => (platform.states = former));
  platform.states = {
    save: async (name, { files }) => {
      await ask("save");
      saved.push(files);
    },
    load: async () => ask("load").then(() => ({ files: [] })),
    remove: () => ask("remove"),
  };
  run.mock.method(console, "warn", (text) => warned.push(text));
  return { trainer: new Trainer({ call }, { kind: "lora" }, {}), asked, begun, saved, warned };
}
const pairs = (query) => [[query, "a"], ["r", "b"]];

test("a trainer does one thing after another, and goes on after what failed", async (run) => {
  const { trainer, asked } = trainerWithoutCore(run, { fails: ["begin a"] });
  const adapter = { "adapter_config.json": bytes("{}"), "adapter_model.safetensors": bytes("") };
  const fits = ["a", "b", "c"].map((query) => trainer.fit({ pairs: pairs(query) }));
  const all = await Promise.allSettled([...fits, trainer.startFrom(adapter), trainer.resume("x"), trainer.state()]);
  assert.deepEqual(all.map(({ status }) => status), ["rejected", ...Array(5).fill("fulfilled")]);
  assert.deepEqual(asked, [
    "begin a", "begin b", "teach", "begin c", "teach", "teachTake", "load", "teachTake", "teach", "remove", "teachFiles",
  ]);
});

test("a state is gone on with as it is given, and nothing of it is kept", async (run) => {
  const { trainer, asked, saved } = trainerWithoutCore(run, { states: ["ten"] });
  assert.deepEqual((await trainer.resume({ files: [] })).adapter, { files: [] });
  assert.deepEqual([asked, saved], [["teachTake", "teach"], []]);
});

test("a checkpoint replaces an earlier run's, keeps the last state that came, and costs no run", async (run) => {
  const states = ["ten", "twenty", "thirty"];
  const { trainer, asked, saved, warned } = trainerWithoutCore(run, { states });
  await trainer.fit({ pairs: pairs("a"), checkpoint: "x" });
  assert.deepEqual(asked, ["begin a", "remove", "teach", "save", "save", "remove"]);
  assert.deepEqual([saved, warned], [["ten", "thirty"], []]);

  const full = trainerWithoutCore(run, { states, fails: ["save", "remove"] });
  const { adapter } = await full.trainer.fit({ pairs: pairs("a"), checkpoint: "x" });
  assert.deepEqual(adapter, { files: [] });
  assert.equal(full.warned.length, 4);
  assert.match(full.warned[1], /^kiln-embed: save failed; the run goes on/);
  // Nothing is forgotten for lessons that make no sense.
  const wrong = trainerWithoutCore(run, { fails: ["begin a"] });
  await assert.rejects(wrong.trainer.fit({ pairs: pairs("a"), checkpoint: "x" }));
  assert.deepEqual(wrong.asked, ["begin a"]);
});

test("lessons: null is as left out, and halves of characters are U+FFFD", async (run) => {
  const { trainer, begun } = trainerWithoutCore(run);
  await trainer.fit({ pairs: pairs("\ud83d"), negatives: [["\ud83d", "no \udc00"]], budget: null, steps: null });
  assert.equal(begun[0].within, false);
  assert.deepEqual(begun[0].lessons[0], { query: "\ufffd", positives: ["a"], negatives: ["no \ufffd"] });
  await trainer.fit({ pairs: pairs("a"), budget: 1000, steps: null });
  assert.equal(begun[1].within, true);
});
