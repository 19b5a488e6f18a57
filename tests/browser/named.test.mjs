// Small copies of named models in a real browser, by tests/browser.sh: their vectors and scores are the references'.

import assert from "node:assert/strict";
import { test } from "node:test";
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { filesIn, openKiln, withPage } from "./browser.mjs";
import { gemma2, named, pairs, texts, writeModel } from "./named_models.mjs";
import { packages } from "./server.mjs";

const { KILN_MODELS } = process.env;
const folders = join(KILN_MODELS, "named");
rmSync(folders, { recursive: true, force: true });

let server, page;

// Most of a test was its page.
withPage({ roots: { page: import.meta.dirname, ...packages(), models: KILN_MODELS }, once: true }, async (begun) => {
  ({ server, page } = begun);
  page.on("pageerror", (error) => assert.fail(`the page threw ${error}`));
  await openKiln(page, server);
});

/** The largest difference, relative to the largest value that is expected. */
const far = (found, expected) => {
  assert.equal(found.length, expected.length);
  const largest = Math.max(...expected.map(Math.abs));
  return Math.max(...found.map((value, at) => Math.abs(value - expected[at]))) / largest;
};

for (const model of [...named, gemma2]) {
  test(`${model.model} in the page`, async () => {
    writeModel(join(folders, model.name), model);
    const url = `/models/named/${model.name}`;
    if (model.kind === "reranker") {
      const { scores, activation } = await page.evaluate(
        async ([url, pairs]) => {
          const reranker = await window.kiln.Reranker.load(url, { worker: false });
          const scores = [];
          for (const [query, text] of pairs) scores.push((await reranker.scores(query, [text]))[0]);
          const { activation } = reranker.info;
          reranker.dispose();
          return { scores, activation };
        },
        [url, pairs],
      );
      const sigmoid = (score) => 1 / (1 + Math.exp(-score));
      const expected = activation === "sigmoid" ? model.expected.map(sigmoid) : model.expected;
      assert.ok(far(scores, expected) < 1e-4, `${scores} ${expected}`);
      return;
    }
    const { vectors, small } = await page.evaluate(
      async ([url, texts]) => {
        const load = async (weights) => {
          const model = await window.kiln.Embedder.load(url, { weights, device: "cpu", worker: false });
          const vectors = (await model.embed(texts)).map((vector) => [...vector]);
          model.dispose();
          return vectors;
        };
        return { vectors: await load("kept"), small: await load("int8") };
      },
      [url, texts],
    );
    assert.ok(far(vectors.flat(), model.expected.flat()) < 5e-5, `${far(vectors.flat(), model.expected.flat())}`);
    // Rounded to int8 as it is loaded, as pages have most models; that of EmbeddingGemma 2 is 0.25 off outside of pages, too.
    if (model !== gemma2) assert.ok(far(small.flat(), model.expected.flat()) < 0.2, `${far(small.flat(), model.expected.flat())}`);
  });
}

/** Weights in so many files, and the index of these. */
const split = (file, shapes, count) => {
  const all = Object.entries(shapes);
  const size = Math.ceil(all.length / count);
  const shards = Array.from({ length: count }, (_, at) => [file.replace(".", `-0000${at + 1}-of-0000${count}.`), all.slice(at * size, (at + 1) * size)]);
  const places = shards.flatMap(([shard, part]) => part.map(([name]) => [name, shard]));
  return {
    tensors: Object.fromEntries(shards.map(([shard, part]) => [shard, Object.fromEntries(part)])),
    index: { [`${file}.index.json`]: { metadata: {}, weight_map: Object.fromEntries(places) } },
  };
};

/**
 * A copy whose Dense module, and maybe all of whose weights, PyTorch wrote, in so many files, and whose limit stands under
 * another of its names.
 */
const older = (backbone, count) => {
  const model = named.find(({ name }) => name.endsWith("--distiluse-base-multilingual-cased-v2"));
  const { "sentence_bert_config.json": limit, "tokenizer_config.json": tokenizer, ...files } = model.files;
  const { "model.safetensors": whole, "2_Dense/model.safetensors": dense } = model.tensors;
  const more = { "sentence_distilbert_config.json": limit, "tokenizer_config.json": { ...tokenizer, model_max_length: 60 } };
  const { tensors, index } = count > 1 ? split(backbone, whole, count) : { tensors: { [backbone]: whole } };
  return { ...model, files: { ...files, ...more, ...index }, tensors: { ...tensors, "2_Dense/pytorch_model.bin": dense } };
};

/** All that the transformer of a folder has, in a folder of its own, as in repositories of sentence-transformers 1. */
const nest = (folder) => {
  mkdirSync(join(folder, "0_Transformer"));
  for (const name of readdirSync(folder)) {
    if (/^(config|tokenizer\w*|sentence_\w+_config)\.json$|\.(bin|safetensors)(\.index\.json)?$/.test(name)) renameSync(join(folder, name), join(folder, "0_Transformer", name));
  }
  const modules = JSON.parse(readFileSync(join(folder, "modules.json")));
  modules[0].path = "0_Transformer";
  writeFileSync(join(folder, "modules.json"), JSON.stringify(modules));
};

for (const [layout, backbone, count] of [
  ["beside", "model.safetensors", 1],
  ["beside", "pytorch_model.bin", 1],
  ["beside", "pytorch_model.bin", 3],
  ["nested with", "model.safetensors", 1],
  ["nested with", "pytorch_model.bin", 3],
]) {
  test(`PyTorch's files and a limit under an older name, by address and dropped, ${layout} ${backbone}, files: ${count}`, async () => {
    const model = older(backbone, count);
    const name = `older-${layout.slice(0, 6)}-${backbone}-${count}`;
    const folder = join(folders, name);
    writeModel(folder, model);
    if (layout !== "beside") nest(folder);
    const found = await page.evaluate(
      async ([url, paths, texts]) => {
        const vectors = async (source) => {
          const model = await window.kiln.Embedder.load(source, { device: "cpu", worker: false });
          const vectors = (await model.embed(texts)).map((vector) => [...vector]);
          const { maxLength } = model.info;
          model.dispose();
          return { vectors, maxLength };
        };
        return [await vectors(url), await vectors(await window.dropped(url, paths))];
      },
      [`/models/named/${name}`, filesIn(folder), texts],
    );
    for (const { vectors, maxLength } of found) {
      assert.equal(maxLength, 40);
      assert.ok(far(vectors.flat(), model.expected.flat()) < 5e-5, `${far(vectors.flat(), model.expected.flat())}`);
    }
  });
}

test("a shard of PyTorch's that is not there, or cut off, is named, by address and dropped", async () => {
  const folder = join(folders, "older-cut");
  writeModel(folder, older("pytorch_model.bin", 3));
  const [url, shard] = ["/models/named/older-cut", "pytorch_model-00002-of-00003.bin"];
  const said = (paths) =>
    page.evaluate(
      async ([url, paths]) => {
        const said = (source) => window.kiln.Embedder.load(source, { device: "cpu", worker: false }).then(() => "it loaded", ({ message }) => message);
        return [await said(url), await said(await window.dropped(url, paths))];
      },
      [url, paths],
    );
  server.missing.add(`${url}/${shard}`);
  const [asked, dropped] = await said(filesIn(folder).filter((path) => path !== shard));
  assert.match(asked, /pytorch_model-00002-of-00003\.bin: the server says 404[^\n]*$/);
  assert.match(dropped, /pytorch_model\.bin\.index\.json: the shard pytorch_model-00002-of-00003\.bin is not there[^\n]*$/);

  server.missing.clear();
  truncateSync(join(folder, shard), statSync(join(folder, shard)).size - 4);
  for (const line of await said(filesIn(folder))) assert.match(line, /pytorch_model-00002-of-00003\.bin: truncated[^\n]*$/);
});
