// Cross-encoders of every family in a real browser, by tests/browser.sh: their scores are sentence-transformers'.

import assert from "node:assert/strict";
import { test } from "node:test";
import { cpSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { filesIn, openKiln, withPage } from "./browser.mjs";
import { packages } from "./server.mjs";

const { KILN_PKG, KILN_MODELS } = process.env;
const fixtures = join(import.meta.dirname, "..", "fixtures");
const read = (path) => JSON.parse(readFileSync(join(fixtures, path), "utf8"));

let server, page;

withPage({ roots: { page: import.meta.dirname, ...packages(), models: KILN_MODELS, fixtures, wasm: join(KILN_PKG, "..") } }, async (begun) => {
  ({ server, page } = begun);
  page.on("pageerror", (error) => assert.fail(`the page threw ${error}`));
  await openKiln(page, server);
});

const pairs = read("rerankers/pairs.json");
const sigmoid = (score) => 1 / (1 + Math.exp(-score));

for (const family of ["bert", "roberta", "camembert", "xlm-roberta", "xlm-roberta-xl", "distilbert", "mpnet", "modernbert", "nomic-bert", "gte", "qwen3", "gemma"]) {
  test(`${family} scores pairs as sentence-transformers does`, async () => {
    const expected = read(`rerankers/${family}/scores.json`).map(sigmoid);
    const { scores, info } = await page.evaluate(
      async ([url, pairs]) => {
        const reranker = await window.kiln.Reranker.load(url);
        const scores = [];
        for (const [query, text] of pairs) scores.push((await reranker.scores(query, [text]))[0]);
        const { info } = reranker;
        reranker.dispose();
        return { scores, info };
      },
      [`/fixtures/rerankers/${family}`, pairs],
    );
    assert.equal(info.activation, "sigmoid");
    assert.match(info.device, /^cpu \(wasm/);
    for (const [at, score] of scores.entries()) {
      assert.ok(Math.abs(score - expected[at]) < 1e-4, `${pairs[at]}: ${score} ${expected[at]}`);
    }
  });
}

test("texts are ranked, the most relevant first", async () => {
  const [query] = pairs[0];
  const texts = pairs.map(([, text]) => text);
  const { all, best, seen, none, wrong, stopped } = await page.evaluate(
    async ([query, texts]) => {
      const reranker = await window.kiln.Reranker.load("/fixtures/rerankers/bert", { worker: false });
      const seen = [];
      const all = await reranker.rank(query, texts, { onProgress: ({ texts }) => seen.push(texts) });
      const best = await reranker.rank(query, texts, { top: 2 });
      const none = await reranker.rank(query, []);
      const said = (run) => run().then(() => "it ran", (error) => `${error.name}: ${error.message}`);
      const wrong = await said(() => reranker.rank(query, [7]));
      const control = new AbortController();
      const stopped = await said(() => reranker.rank(query, texts, { signal: control.signal, onProgress: () => control.abort() }));
      reranker.dispose();
      return { all, best, seen, none, wrong, stopped };
    },
    [query, texts],
  );
  assert.deepEqual([...all].sort((a, b) => a.index - b.index).map(({ text }) => text), texts);
  assert.ok(all.every(({ score }, at) => at === 0 || score <= all[at - 1].score));
  assert.deepEqual(best, all.slice(0, 2));
  assert.deepEqual(seen, texts.map((_, at) => at + 1));
  assert.deepEqual(none, []);
  assert.match(wrong, /^TypeError: texts\[0\] is 7/);
  assert.match(stopped, /^AbortError/);
});

test("an embedder is no reranker, and a reranker no embedder", async () => {
  const before = server.seen.filter(({ path }) => path === "/fixtures/rerankers/bert/model.safetensors").length;
  const said = (kind, url) =>
    page.evaluate(([kind, url]) => window.kiln[kind].load(url).then(() => "it loaded", (error) => `${error.name}: ${error.message}`), [kind, url]);
  assert.match(await said("Reranker", "/fixtures/static/model2vec"), /is no reranker|has no/);
  // What is kept is not fetched once more for it.
  for (let time = 0; time < 2; time++) assert.match(await said("Embedder", "/fixtures/rerankers/bert"), /^RangeError: .*kiln rerank/);
  assert.equal(server.seen.filter(({ path }) => path === "/fixtures/rerankers/bert/model.safetensors").length, 1 + before);
});

for (const family of ["qwen3", "gemma"]) {
  test(`${family} whose model card says that it ranks is no embedder, by address and dropped`, async () => {
    const name = `card-${family}`;
    const folder = join(KILN_MODELS, name);
    cpSync(join(fixtures, "rerankers", family), folder, { recursive: true });
    writeFileSync(join(folder, "README.md"), "---\nlicense: apache-2.0\npipeline_tag: text-ranking\n---\n\n# A model\n");
    const all = await page.evaluate(async ([url, paths]) => {
      const all = [];
      for (const source of [url, await window.dropped(url, paths)]) {
        all.push(await window.kiln.Embedder.load(source).then(() => "it loaded", (error) => `${error.name}: ${error.message}`));
      }
      return all;
    }, [`/models/${name}`, filesIn(folder)]);
    assert.equal(all.length, 2);
    for (const said of all) assert.match(said, /^RangeError: .*is a reranker by its name or model card[^\n]*$/);
  });
}

test("a head of several scores ranks nothing", async () => {
  const folder = join(KILN_MODELS, "three-scores");
  cpSync(join(fixtures, "rerankers/bert"), folder, { recursive: true });
  const file = readFileSync(join(folder, "model.safetensors"));
  const start = 8 + Number(file.readBigUInt64LE(0));
  const header = JSON.parse(file.subarray(8, start));
  const parts = [];
  let end = 0;
  for (const [name, tensor] of Object.entries(header).filter(([name]) => name !== "__metadata__")) {
    const part = file.subarray(...tensor.data_offsets.map((place) => start + place));
    const isHead = name.startsWith("classifier.");
    if (isHead) tensor.shape[0] = 3;
    const bytes = Buffer.concat(isHead ? [part, part, part] : [part]);
    tensor.data_offsets = [end, (end += bytes.length)];
    parts.push(bytes);
  }
  const text = JSON.stringify(header);
  const head = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(head.length));
  writeFileSync(join(folder, "model.safetensors"), Buffer.concat([length, head, ...parts]));
  const said = await page.evaluate(() => window.kiln.Reranker.load("/models/three-scores").then(() => "it loaded", (error) => `${error.name}: ${error.message}`));
  assert.match(said, /^RangeError: .*the model gives each pair 3 scores, and a reranker gives one; name a model[^\n]*$/);
});

test("static embeddings give sentence-transformers' vectors", async () => {
  const texts = read("static/texts.json");
  const lengths = await page.evaluate(async (texts) => {
    const model = await window.kiln.Embedder.load("/fixtures/static/sentence-transformers");
    const vectors = await model.embed(texts);
    return vectors.map((vector) => Math.hypot(...vector));
  }, texts);
  assert.ok(lengths.every((length) => Math.abs(length - 1) < 1e-5));
});

test("a rounded cross-encoder is one file, and is tested by the scores that it carries", async () => {
  const wrong = join(KILN_MODELS, "reranker-wrong");
  cpSync(join(KILN_MODELS, "reranker"), wrong, { recursive: true });
  const manifest = JSON.parse(readFileSync(join(wrong, "kiln.json"), "utf8"));
  assert.equal(manifest.self_test, undefined);
  manifest.score_test.scores[0] += 1;
  writeFileSync(join(wrong, "kiln.json"), JSON.stringify(manifest));
  const { scores, said } = await page.evaluate(async (pairs) => {
    const reranker = await window.kiln.Reranker.load("/models/reranker.kiln");
    const scores = [];
    for (const [query, text] of pairs) scores.push((await reranker.scores(query, [text]))[0]);
    reranker.dispose();
    const said = await window.kiln.Reranker.load("/models/reranker-wrong").then(() => "it loaded", (error) => error.message);
    return { scores, said };
  }, pairs);
  const expected = read("rerankers/bert/scores.json").map(sigmoid);
  assert.ok(scores.every((score, at) => Math.abs(score - expected[at]) < 0.02), `${scores} ${expected}`);
  assert.ok(scores.some((score, at) => Math.abs(score - expected[at]) > 1e-5), "the weights are not rounded");
  assert.match(said, /fails the test that it carries: on the CPU a score is/);
});

test("a decoder that sentence-transformers saved with its chat template, by address and dropped", async () => {
  for (const name of ["qwen3-chat", "qwen3-one-token"]) {
    for (const part of ["qwen3", name]) cpSync(join(fixtures, "rerankers", part), join(KILN_MODELS, name), { recursive: true });
  }
  const paths = filesIn(join(KILN_MODELS, "qwen3-chat"));
  const { all, said } = await page.evaluate(async ([pairs, paths]) => {
    const url = "/models/qwen3-chat";
    const all = [];
    for (const source of [url, await window.dropped(url, paths)]) {
      const reranker = await window.kiln.Reranker.load(source);
      const scores = [];
      for (const [query, text] of pairs) scores.push((await reranker.scores(query, [text]))[0]);
      reranker.dispose();
      all.push(scores);
    }
    const said = await window.kiln.Reranker.load("/models/qwen3-one-token").then(() => "it loaded", (error) => error.message);
    return { all, said };
  }, [pairs, paths]);
  const expected = read("rerankers/qwen3-chat/scores.json").scores.map(sigmoid);
  for (const scores of all) assert.ok(scores.every((score, at) => Math.abs(score - expected[at]) < 1e-4), `${scores} ${expected}`);
  assert.match(said, /its chat template is not Qwen3-Reranker's/);
});

test("a decoder with any chat template, as Kiln exported it", async () => {
  const [full, rounded] = await page.evaluate(async (pairs) => {
    const all = [];
    for (const source of ["/models/decoder-f32", "/models/decoder.kiln"]) {
      const reranker = await window.kiln.Reranker.load(source);
      const scores = [];
      for (const [query, text] of pairs) scores.push((await reranker.scores(query, [text]))[0]);
      reranker.dispose();
      all.push(scores);
    }
    return all;
  }, pairs);
  const { scores } = read("rerankers/qwen3-one-token/scores.json");
  const near = (found, most) => found.every((score, at) => Math.abs(score - scores[at]) < most);
  assert.ok(near(full, 1e-3), `${full} ${scores}`);
  assert.ok(near(rounded, 1) && !near(rounded, 1e-3), `${rounded} ${scores}`);
});
