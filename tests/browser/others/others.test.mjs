// kiln-embed and the demo in Firefox and WebKit: what Chromium's tests have in full, in short. By tests/browser.sh.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { lessons, trainedNatively } from "../lessons.mjs";
import { packages, serve } from "../server.mjs";
import { cosine, native, texts } from "../vectors.mjs";
import { browsers } from "./browsers.mjs";

const { KILN_MODELS, KILN_DEMO } = process.env;
const roots = { page: join(import.meta.dirname, ".."), ...packages(), models: KILN_MODELS, demo: KILN_DEMO };
const PASSAGES = readFileSync(join(import.meta.dirname, "../../../web-demo/collection.md"), "utf8").split("\n## ").length - 1;
const least = (vectors, to) => Math.min(...vectors.map((vector, at) => cosine(vector, to[at])));

/** Asks a page again until it says yes. */
async function until(what, ask, seconds = 120) {
  for (let waited = 0; !(await ask().catch(() => false)); waited += 0.25) {
    assert.ok(waited < seconds, `${what}: not within ${seconds} s`);
    await sleep(250);
  }
}

const GIVEN = lessons(24);
const PLAN = { steps: 6, batchSize: 8, learningRate: 1e-3 };
let taughtNatively;

for (const [name, { missing, start }] of Object.entries(browsers)) {
  let browser, server, isolated;
  const options = { skip: missing ?? false, timeout: 300_000 };

  before(async () => {
    if (missing) return;
    server = await serve(roots);
    isolated = await serve(roots, { isolated: true });
    browser = await start();
  });
  after(async () => {
    await browser?.close();
    server?.close();
    isolated?.close();
  });

  /** A test with a page that has kiln-embed as `window.kiln`. */
  const withKiln = (what, body, { at = () => server, of = () => browser } = {}) =>
    test(`${name}: ${what}`, options, async (run) => {
      const page = await of().page();
      try {
        await page.open(`${at().url}/page/page.html`);
        await until("kiln-embed", () => page.run(() => Boolean(window.kiln)), 30);
        await body(page, run);
      } finally {
        server.mend();
        await page.close();
      }
    });

  const embed = (page, file, given) =>
    page.run(
      async (url, options, texts) => {
        const model = await window.kiln.Embedder.load(url, { device: "cpu", ...options });
        const vectors = (await model.embed(texts, { batchTokens: 512 })).map((vector) => [...vector]);
        model.dispose();
        return { vectors, device: model.device };
      },
      `/models/${file}`,
      given,
      texts,
    );

  for (const [file, known, close] of [["mini.kiln", "native-mini.jsonl", 0.9999], ["model.kiln", "native.jsonl", 0.999], ["f32.kiln", "native-f32.jsonl", 0.99999]]) {
    withKiln(`native vectors of ${file}, in a worker and in the page's thread, under a strict policy`, async (page, run) => {
      for (const worker of file === "f32.kiln" ? [true] : [true, false]) {
        const { vectors, device } = await embed(page, file, { worker });
        const cosines = least(vectors, native(known));
        run.diagnostic(`${device}, cosine ${cosines.toFixed(6)}`);
        assert.match(device, /^cpu \(wasm, (relaxed )?SIMD\)$/);
        assert.ok(cosines > close, `${cosines}`);
      }
    });
  }

  withKiln(
    "threads in a page that is isolated, where there is relaxed SIMD",
    async (page, run) => {
      const { vectors, device } = await embed(page, "mini.kiln", { threads: 2 });
      run.diagnostic(device);
      assert.match(device, name === "Firefox" ? /^cpu \(wasm, relaxed SIMD, 2 threads\)$/ : /^cpu \(wasm, (relaxed SIMD, 2 threads|SIMD)\)$/);
      assert.ok(least(vectors, native("native-mini.jsonl")) > 0.9999);
    },
    { at: () => isolated },
  );

  withKiln("texts are shared by several workers, a run is stopped, and the model computes on", async (page) => {
    const found = await page.run(async (url) => {
      const model = await window.kiln.Embedder.load(url, { workers: 2, device: "cpu" });
      const texts = Array.from({ length: 200 }, (_, at) => `${at} ${"boats and ships ".repeat(1 + (at % 7))}`);
      const stop = new AbortController();
      const aborted = await model.embed(texts, { signal: stop.signal, onProgress: () => stop.abort() }).then(() => "it ended", (error) => error.name);
      const early = new AbortController();
      const load = window.kiln.Embedder.load(url, { cache: false, signal: early.signal, onProgress: () => early.abort() });
      const unloaded = await load.then(() => "it loaded", (error) => error.name);
      const [all, one] = [await model.embed(texts), await model.embed(texts[8])];
      const same = one.every((x, at) => Math.abs(x - all[8][at]) < 1e-5);
      model.dispose();
      const disposed = await model.embed("a").then(() => "it ran", (error) => error.message);
      return { aborted, unloaded, same, disposed };
    }, "/models/mini.kiln");
    assert.deepEqual(found, { aborted: "AbortError", unloaded: "AbortError", same: true, disposed: "the embedder is disposed" });
  });

  withKiln("a kept model loads without its server, and an index is found again", async (page) => {
    // Room for it: the models of other tests are large.
    await page.run(() => window.kiln.clearCache());
    await embed(page, "mini.kiln", {});
    assert.equal(await page.run(async () => (await (await caches.open("kiln-embed-1")).keys()).length), 1);
    server.setDown(true);
    const found = await page.run(async (url) => {
      const { Embedder, Index } = window.kiln;
      const model = await Embedder.load(url, { device: "cpu" });
      const texts = ["a boat on the river", "bread out of the oven", "the parliament voted"];
      const vectors = await model.embed(texts);
      const index = await Index.create({ dimensions: model.dimensions });
      await index.add(texts.map((data, id) => ({ id, vector: vectors[id], data })));
      await index.save("texts");
      index.dispose();
      const again = await Index.load("texts");
      const hits = await again.search(await model.embed("a ship at sea"), { k: 1 });
      again.dispose();
      model.dispose();
      const names = await Index.names();
      await Index.delete("texts");
      return { hit: hits[0].data, names, left: await Index.names() };
    }, "/models/mini.kiln");
    assert.deepEqual(found, { hit: "a boat on the river", names: ["texts"], left: [] });
  });

  withKiln("teaching has the losses of kiln train, and its vectors", async (page, run) => {
    taughtNatively ??= trainedNatively(GIVEN, PLAN);
    const found = await page.run(
      async (url, options, texts) => {
        const model = await window.kiln.Embedder.load(url, { device: "cpu", weights: "f32" });
        const trainer = await model.trainer({ training: window.training, kind: "lora", rank: 4, seed: 3 });
        const losses = [];
        const onProgress = ({ loss }) => loss !== undefined && losses.push(loss);
        const { adapter, seconds } = await trainer.fit({ ...options, holdBack: 0, onProgress });
        trainer.dispose();
        await model.addAdapter("taught", adapter);
        await model.setAdapter("taught");
        const vectors = (await model.embed(texts)).map((vector) => [...vector]);
        model.dispose();
        return { losses, vectors, seconds };
      },
      "/models/mini.kiln",
      { ...GIVEN, ...PLAN },
      texts,
    );
    run.diagnostic(`${PLAN.steps} steps of ${PLAN.batchSize} in ${found.seconds.toFixed(1)} s`);
    assert.equal(found.losses.length, PLAN.steps);
    for (const [at, loss] of found.losses.entries()) {
      const expected = taughtNatively.losses[at];
      assert.ok(Math.abs(loss - expected) < 1e-4 * Math.max(1, expected), `step ${at + 1}: ${loss} ${expected}`);
    }
    assert.ok(least(found.vectors, taughtNatively.vectors(texts)) > 0.9999);
  });

  test(`${name}: in private windows too`, options, async (run) => {
    const secret = await start({ isPrivate: true });
    try {
      const page = await secret.page();
      await page.open(`${server.url}/page/page.html`);
      await until("kiln-embed", () => page.run(() => Boolean(window.kiln)), 30);
      const { vectors } = await embed(page, "mini.kiln", {});
      assert.ok(least(vectors, native("native-mini.jsonl")) > 0.9999);
      const kept = await page.run(async () => {
        const said = (run) => run.then((found) => (found === null ? "not there" : "works"), (error) => error.message);
        const index = await window.kiln.Index.create({ dimensions: 2 });
        await index.add([{ id: 1, vector: [1, 0] }]);
        return { indexes: await said(index.save("x")), cache: await said(caches.open("x")), files: await said(Promise.resolve(navigator.storage?.getDirectory?.() ?? null)) };
      });
      run.diagnostic(JSON.stringify(kept));
      assert.equal(kept.indexes, "works");
    } finally {
      await secret.close();
    }
  });

  test(`${name}: the demo indexes, finds by meaning, and keeps all of it`, options, async (run) => {
    const page = await browser.page();
    try {
      const says = (pattern) => page.run((pattern) => new RegExp(pattern).test(document.body.innerText), pattern);
      const open = async () => {
        await page.open(`${server.url}/demo/index.html`);
        await until("the model", () => says("on cpu \\(wasm"));
      };
      await open();
      await until("the index", () => says(`${PASSAGES} passages indexed`));
      const search = async (text) => {
        await page.run((text) => {
          const [input] = [...document.querySelectorAll("label")].filter((label) => label.textContent.includes("Search the collection")).map((label) => label.control);
          input.value = text;
          input.dispatchEvent(new Event("input", { bubbles: true }));
        }, text);
        await until(text, () => page.run((text) => Boolean(document.querySelector(`.columns[data-asked=${JSON.stringify(text)}][aria-busy=false]`)), text), 30);
        return page.run(() => [...document.querySelectorAll("section[aria-labelledby=by-meaning] h3")].map((title) => title.textContent));
      };
      assert.equal((await search("why do leaves change colour in October"))[0], "Autumn leaves");
      // No word in common.
      assert.ok((await search("vessels without a crew")).slice(0, 3).includes("Ghost ships"));
      const fetched = () => server.seen.filter(({ path }) => path.endsWith(".kiln")).length;
      const before = fetched();
      await open();
      await until("the kept index", () => says(`${PASSAGES} passages, kept in this browser`));
      assert.equal((await search("how to keep bread from going stale"))[0], "Keeping bread fresh");
      run.diagnostic(`${await page.run(() => document.body.innerText.match(/on cpu \(wasm[^)]*\)/)[0])}; the model was fetched ${fetched() - before} times at the second visit`);
      assert.equal(fetched(), before, "the model is kept");
    } finally {
      await page.close();
    }
  });
}
