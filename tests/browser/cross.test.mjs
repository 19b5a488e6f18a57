// kiln-embed with a model on another site, whose server lets pages read little more than the bytes, and itself on one. By
// tests/browser.sh.

import assert from "node:assert/strict";
import { test } from "node:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { openKiln, withPage } from "./browser.mjs";
import { lessons } from "./lessons.mjs";
import { packages, serve } from "./server.mjs";
import { cosine, native, texts } from "./vectors.mjs";

const { KILN_MODELS } = process.env;
const file = readFileSync(join(KILN_MODELS, "mini.kiln"));
const DATE = "Tue, 01 Oct 2024 10:00:00 GMT";

let server, page;
// The policy of the other tests allows no other site.
withPage({ roots: { page: import.meta.dirname, ...packages(), models: KILN_MODELS }, csp: false }, async (begun) => {
  ({ server, page } = begun);
  page.on("pageerror", (error) => assert.fail(`the page threw ${error}`));
  await openKiln(page, server);
});

for (const [what, date, joined] of [["goes on where it stopped", DATE, true], ["begins anew where the file has changed", "Wed, 02 Oct 2024 10:00:00 GMT", false]]) {
  test(`a download from another site that breaks off ${what}`, async () => {
    const seen = [];
    server.answers.set("/models/far.kiln", (request, response) => {
      seen.push([request.method, request.headers.range !== undefined]);
      const headers = { "access-control-allow-origin": "*", "cache-control": "no-store" };
      // No header but those that all pages may send.
      if (request.method !== "GET" || seen.length > 3) return response.writeHead(403, headers).end();
      const from = Number(/\d+/.exec(request.headers.range ?? "0")[0]);
      const body = file.subarray(from);
      if (from > 0) response.writeHead(206, { ...headers, "last-modified": date, "content-length": body.length, "content-range": `bytes ${from}-${file.length - 1}/${file.length}` }).end(body);
      else if (seen.length > 1) response.writeHead(200, { ...headers, "last-modified": date, "content-length": file.length }).end(file);
      else {
        response.writeHead(200, { ...headers, "last-modified": DATE, "content-length": file.length });
        response.write(file.subarray(0, 500_000), () => setTimeout(() => request.socket.destroy(), 50));
      }
    });
    const address = `${server.url.replace("127.0.0.1", "localhost")}/models/far.kiln`;
    const vector = await page.evaluate(async ([address, text]) => {
      const model = await window.kiln.Embedder.load(address, { device: "cpu" });
      return [...(await model.embed(text))];
    }, [address, texts[0]]);
    assert.ok(cosine(vector, native("native-mini.jsonl")[0]) > 0.999);
    assert.deepEqual(seen.slice(0, 3), [["GET", false], ["GET", true], ...(joined ? [] : [["GET", false]])]);
  });
}

test("a file that another site compresses on the way, and does not say so", async () => {
  const body = gzipSync(file);
  server.answers.set("/models/zipped.kiln", (request, response) => {
    response.writeHead(200, { "access-control-allow-origin": "*", "content-encoding": "gzip", "content-length": body.length, "last-modified": DATE }).end(body);
  });
  const address = `${server.url.replace("127.0.0.1", "localhost")}/models/zipped.kiln`;
  const { vector, totals } = await page.evaluate(async ([address, text]) => {
    const seen = [];
    const model = await window.kiln.Embedder.load(address, { device: "cpu", onProgress: (now) => seen.push(now) });
    return { vector: [...(await model.embed(text))], totals: seen.filter(({ stage }) => stage === "download").map(({ total }) => total) };
  }, [address, texts[0]]);
  assert.ok(cosine(vector, native("native-mini.jsonl")[0]) > 0.999);
  assert.equal(totals.at(-1), file.length);
});

for (const isolated of [false, true]) {
  test(`the package itself may lie on another site, as on a CDN${isolated ? ", with threads too" : ""}`, async (run) => {
    const [cdn, home] = [await serve({ ...packages(), models: KILN_MODELS }, { open: true }), await serve({ page: import.meta.dirname, ...packages() }, { isolated, csp: false })];
    run.after(() => [cdn, home].forEach((one) => one.close()));
    await page.goto(`${home.url}/page/page.html`);
    const found = await page.evaluate(async ([cdn, text, threads]) => {
      const { Embedder } = await import(`${cdn}/pkg/index.js`);
      const model = await Embedder.load(`${cdn}/models/mini.kiln`, { device: "cpu", threads });
      return { device: model.device, vector: [...(await model.embed(text))] };
    }, [cdn.url.replace("127.0.0.1", "localhost"), texts[0], isolated ? 2 : 1]);
    assert.equal(found.device, `cpu (wasm, relaxed SIMD${isolated ? ", 2 threads" : ""})`);
    assert.ok(cosine(found.vector, native("native-mini.jsonl")[0]) > 0.999);
    // All of it came from there.
    assert.ok(cdn.seen.some(({ path }) => path.endsWith(".wasm")) && home.seen.every(({ path }) => !path.endsWith(".wasm")));
  });
}

for (const [isolated, both] of [[false, true], [false, false], [true, true], [true, false]]) {
  test(`an add-on may lie on another site, ${both ? "as the package does" : "the package on the page's"}${isolated ? ", with threads too" : ""}`, async (run) => {
    const [cdn, home] = [await serve(packages(), { open: true }), await serve({ page: import.meta.dirname, ...packages(), models: KILN_MODELS }, { isolated, csp: false })];
    run.after(() => [cdn, home].forEach((one) => one.close()));
    await page.goto(`${home.url}/page/page.html`);
    await page.waitForFunction(() => window.kiln);
    const found = await page.evaluate(async ([cdn, both, given, threads]) => {
      const { Embedder } = both ? await import(`${cdn}/pkg/index.js`) : window.kiln;
      const { default: training } = await import(`${cdn}/pkg-train/index.js`);
      const model = await Embedder.load("/models/mini.kiln", { device: "cpu", threads });
      const trainer = await model.trainer({ training, kind: "lora" });
      const { steps } = await trainer.fit({ ...given, steps: 2 });
      for (const one of [model, trainer]) one.dispose();
      return { steps, device: trainer.device };
    }, [cdn.url.replace("127.0.0.1", "localhost"), both, lessons(8), isolated ? 2 : 1]);
    const build = isolated ? "train-threads" : "train";
    assert.deepEqual(found, { steps: 2, device: isolated ? "cpu (wasm, relaxed SIMD, 2 threads)" : "cpu (wasm, SIMD)" });
    assert.ok(cdn.seen.some(({ path }) => path === `/pkg-train/${build}/kiln_wasm_bg.wasm`));
    assert.ok(home.seen.every(({ path }) => !path.startsWith("/pkg-train/train")));
  });
}
