// Teaching in a real browser, by tests/browser.sh: the losses and vectors are those of `kiln train`.

import assert from "node:assert/strict";
import { test } from "node:test";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { brotliCompressSync, constants } from "node:zlib";
import { openKiln, withPage } from "./browser.mjs";
import { lessons, named, trainedNatively } from "./lessons.mjs";
import { pageMemory } from "./memory.mjs";
import { packages } from "./server.mjs";
import { cosine, native, texts } from "./vectors.mjs";

const { KILN_MODELS, KILN_NATIVE } = process.env;
const MINI = "/models/mini.kiln";

let server, browser, page;

withPage({ roots: { page: import.meta.dirname, ...packages(), models: KILN_MODELS } }, async (begun) => {
  ({ server, browser, page } = begun);
  page.on("pageerror", (error) => assert.fail(`the page threw ${error}`));
  await openKiln(page, server);
});

const TEXTS = ["a rope for climbing of series 1", "Sombo 1", "letters of the alphabet"];

/** What fit gives in the page, its losses, and the vectors of texts with the adapters. */
function taught(options, { load = {}, texts = TEXTS } = {}) {
  return page.evaluate(
    async ([url, options, load, texts]) => {
      const model = await window.kiln.Embedder.load(url, load);
      const trainer = await model.trainer({ training: window.training, kind: "lora", rank: 4, seed: 3 });
      const seen = [];
      const result = await trainer.fit({ ...options, onProgress: (progress) => seen.push(progress) });
      const { device } = trainer;
      trainer.dispose();
      const bare = await model.embed(texts);
      const fingerprints = [model.info.fingerprint];
      let vectors;
      if (result.adapter) {
        await model.addAdapter("taught", result.adapter);
        await model.setAdapter("taught");
        fingerprints.push(model.info.fingerprint);
        vectors = await model.embed(texts);
        await model.setAdapter(null);
      }
      const again = await model.embed(texts);
      model.dispose();
      const files = result.adapter?.files.map(([name, bytes]) => [name, Array.from(bytes)]);
      const plain = (vectors) => vectors?.map((vector) => Array.from(vector));
      return { ...result, adapter: undefined, files, seen, device, fingerprints, bare: plain(bare), vectors: plain(vectors), again: plain(again) };
    },
    [MINI, options, load, texts],
  );
}

/** The tensors of a file, by name. */
function tensors(file) {
  const start = 8 + Number(file.readBigUInt64LE());
  const { __metadata__, ...header } = JSON.parse(file.subarray(8, start));
  const values = ([from, to]) => Array.from({ length: (to - from) / 4 }, (_, at) => file.readFloatLE(start + from + 4 * at));
  return new Map(Object.entries(header).map(([name, { data_offsets }]) => [name, values(data_offsets)]));
}

test("losses and vectors are those of kiln train, with the same seed, pairs and steps", async () => {
  const given = lessons(40);
  const plan = { steps: 12, batchSize: 8, learningRate: 1e-3 };
  const inPage = await taught({ ...given, ...plan, holdBack: 0 }, { load: { weights: "f32" } });
  assert.match(inPage.device, /^cpu \(wasm/);
  assert.deepEqual([inPage.taught, inPage.heldBack, inPage.steps, inPage.kept, inPage.before, inPage.after], [40, 0, 12, true, null, null]);

  const native = trainedNatively(given, plan);
  const losses = inPage.seen.filter(({ loss }) => loss !== undefined).map(({ loss }) => loss);
  assert.equal(losses.length, 12);
  for (const [at, loss] of losses.entries()) assert.ok(Math.abs(loss - native.losses[at]) < 1e-4 * Math.max(1, native.losses[at]), `step ${at + 1}: ${loss} ${native.losses[at]}`);

  const least = Math.min(...native.vectors(TEXTS).map((vector, at) => cosine(vector, inPage.vectors[at])));
  assert.ok(least > 0.9999, `${least}`);
  // The adapters are those that the command wrote, but for what they call their base.
  const [ours, theirs] = [new Map(inPage.files.map(([name, bytes]) => [name, Buffer.from(bytes)])), new Map()];
  for (const name of ours.keys()) theirs.set(name, readFileSync(join(native.run, "adapter", name)));
  const configs = [ours, theirs].map((files) => ({ ...JSON.parse(files.get("adapter_config.json")), base_model_name_or_path: "" }));
  assert.deepEqual(configs[0], configs[1]);
  const [inOurs, inTheirs] = [ours, theirs].map((files) => tensors(files.get("adapter_model.safetensors")));
  assert.deepEqual([...inOurs.keys()].sort(), [...inTheirs.keys()].sort());
  for (const [name, values] of inOurs) assert.ok(cosine(values, inTheirs.get(name)) > 0.999, `${name}: ${cosine(values, inTheirs.get(name))}`);
});

/** Runs the native command in a folder. */
const kiln = (folder, ...args) => execFileSync(resolve(KILN_NATIVE), [...args, "--quiet", "--device", "cpu"], { cwd: folder, stdio: ["ignore", "ignore", "inherit"] });

test("the command reads the adapters of a page, and merges them into their base", async () => {
  const inPage = await taught({ ...lessons(40), steps: 12, batchSize: 8, learningRate: 1e-2, holdBack: 0 }, { load: { weights: "f32" } });
  const folder = mkdtempSync(join(tmpdir(), "kiln-taught-"));
  // By the name that the page knew it by.
  kiln(folder, "export", "--model", resolve(KILN_MODELS, "mini.kiln"), "--output", "mini");
  mkdirSync(join(folder, "adapter"));
  for (const [name, bytes] of inPage.files) writeFileSync(join(folder, "adapter", name), Buffer.from(bytes));
  kiln(folder, "export", "--model", "adapter", "--weights", "f32", "--output", "merged");
  writeFileSync(join(folder, "texts.jsonl"), TEXTS.map((text) => JSON.stringify({ text })).join("\n"));
  const vectors = (model, ...options) => {
    kiln(folder, "embed", "--model", model, ...options, "--input", "texts.jsonl", "--output", `${model}.jsonl`);
    return readFileSync(join(folder, `${model}.jsonl`), "utf8").trim().split("\n").map((line) => JSON.parse(line).embedding);
  };
  const least = (ours, theirs) => Math.min(...ours.map((vector, at) => cosine(vector, theirs[at])));
  const [adapted, merged, base] = [vectors("adapter"), vectors("merged"), vectors("mini", "--weights", "f32")];
  assert.deepEqual([adapted.length, merged.length, base.length], [TEXTS.length, TEXTS.length, TEXTS.length]);
  assert.ok(least(inPage.vectors, adapted) > 0.999, `${least(inPage.vectors, adapted)}`);
  assert.ok(least(inPage.vectors, merged) > 0.999, `${least(inPage.vectors, merged)}`);
  assert.ok(least(inPage.bare, base) > 0.999, `${least(inPage.bare, base)}`);
  assert.ok(least(base, adapted) < 0.999, `the adapters do nothing: ${least(base, adapted)}`);
});

test("a base that computes wrongly is refused before it is taught", async () => {
  const folder = mkdtempSync(join(tmpdir(), "kiln-wrong-"));
  const right = resolve(KILN_MODELS, "mini.kiln");
  kiln(folder, "export", "--model", right, "--output", "wrong");
  const path = join(folder, "wrong", "kiln.json");
  const manifest = JSON.parse(readFileSync(path, "utf8"));
  manifest.self_test.vectors[1].reverse();
  writeFileSync(path, JSON.stringify(manifest));
  kiln(folder, "export", "--model", "wrong", "--output", "wrong.kiln");
  const url = "/models/turned.kiln";
  let file = readFileSync(right);
  server.answers.set(url, (request, response) => {
    response.writeHead(200, { "content-type": "application/octet-stream", "content-length": file.length, "cache-control": "no-store" });
    response.end(request.method === "HEAD" ? undefined : file);
  });
  const options = { device: "cpu", workers: 1, cache: false };
  await page.evaluate(async ([url, options]) => {
    window.turned = await window.kiln.Embedder.load(url, options);
  }, [url, options]);
  // A trainer reads the file once more.
  file = readFileSync(join(folder, "wrong.kiln"));
  const said = await page.evaluate(async ([url, options]) => {
    const line = (run) => run.then(() => "it ran", (error) => `${error.name}: ${error.message}`);
    const model = window.turned;
    delete window.turned;
    const said = { trainer: await line(model.trainer({ training: window.training, kind: "lora" })), embedder: await line(window.kiln.Embedder.load(url, options)) };
    said.works = (await model.embed("a boat")).length === model.dimensions;
    model.dispose();
    return said;
  }, [url, options]);
  server.answers.delete(url);
  for (const refused of [said.trainer, said.embedder]) assert.match(refused, /^Error: .*fails the test that it carries: on the CPU its vectors have a cosine of/);
  assert.ok(said.works);
});

test("a lesson that is given twenty times counts as one", async () => {
  const { pairs, negatives } = lessons(1);
  const repeated = ([lesson]) => Array.from({ length: 20 }, () => lesson);
  // Of twenty lessons half would be held back.
  const plan = { steps: 3, batchSize: 8, holdBack: 0.5 };
  const once = await taught({ pairs, negatives, ...plan });
  const often = await taught({ pairs: repeated(pairs), negatives: repeated(negatives), ...plan });
  assert.deepEqual([often.taught, often.heldBack, often.steps, often.kept], [1, 0, 3, true]);
  const losses = ({ seen }) => seen.map(({ loss }) => loss).filter((loss) => loss !== undefined);
  assert.equal(losses(often).length, 3);
  assert.deepEqual(losses(often), losses(once));
  assert.deepEqual(often.files, once.files);
});

test("a file in bf16 is computed in f32, to embed and to teach", async () => {
  const run = (weights) =>
    page.evaluate(
      async ([weights, texts, given]) => {
        const model = await window.kiln.Embedder.load("/models/bf16.kiln", { weights, device: "cpu" });
        const vectors = (await model.embed(texts)).map((vector) => [...vector]);
        const trainer = await model.trainer({ training: window.training, kind: "lora", rank: 4, seed: 3 });
        const losses = [];
        await trainer.fit({ ...given, steps: 2, batchSize: 8, holdBack: 0, onProgress: ({ loss }) => losses.push(loss) });
        trainer.dispose();
        model.dispose();
        return { vectors, losses, weights: model.info.weights };
      },
      [weights, texts, lessons(16)],
    );
  const [kept, full] = [await run("kept"), await run("f32")];
  assert.deepEqual([kept.weights, full.weights], ["bf16", "f32"]);
  const expected = native("native-bf16.jsonl");
  for (const [at, vector] of kept.vectors.entries()) assert.ok(cosine(vector, expected[at]) > 0.99999, `${texts[at]}: ${cosine(vector, expected[at])}`);
  assert.deepEqual(kept.vectors, full.vectors);
  assert.ok(kept.losses.length >= 2);
  assert.deepEqual(kept.losses, full.losses);
});

test("the losses and vectors of a packed base are those that it has natively", async () => {
  // wasm/lessons/tests/mini/learned.rs holds the native run to the same numbers.
  const native = JSON.parse(readFileSync(join(import.meta.dirname, "../fixtures/lessons.json"), "utf8"));
  const inPage = await taught({ ...lessons(40), steps: 12, batchSize: 8, learningRate: 1e-3, holdBack: 0 });
  const losses = inPage.seen.filter(({ loss }) => loss !== undefined).map(({ loss }) => loss);
  assert.equal(losses.length, native.losses.length);
  // States are rounded to bytes before each product, and one that is rounded the other way moves more than sums of f32 do.
  for (const [at, loss] of losses.entries()) {
    const allowed = at === 0 ? 1e-3 : 5e-3;
    assert.ok(Math.abs(loss - native.losses[at]) < allowed * Math.max(1, native.losses[at]), `step ${at + 1}: ${loss} ${native.losses[at]}`);
  }
  const least = Math.min(...native.vectors.map((vector, at) => cosine(vector, inPage.vectors[at])));
  assert.ok(least > 0.9999, `${least}`);
});

test("who never trains fetches nothing for it, and who does not much", async () => {
  const fetched = () => server.seen.map(({ path }) => path).filter((path) => /\/pkg\/trainer|\/pkg-train\/train/.test(path));
  const before = fetched().length;
  await page.evaluate(async (url) => {
    const model = await window.kiln.Embedder.load(url);
    await model.embed("a boat");
    model.dispose();
  }, MINI);
  assert.deepEqual(fetched().slice(before), []);
  await page.evaluate(async (url) => {
    const model = await window.kiln.Embedder.load(url);
    (await model.trainer({ training: window.training, kind: "lora" })).dispose();
    model.dispose();
  }, MINI);
  assert.deepEqual(fetched().slice(before).filter((path) => path.endsWith(".wasm")), ["/pkg-train/train/kiln_wasm_bg.wasm"]);
  const bytes = (build) => readFileSync(join(packages()[build.startsWith("train") ? "pkg-train" : "pkg"], build, "kiln_wasm_bg.wasm"));
  // Brotli at a lower quality than a server's best makes both a little larger.
  const packed = (build) => brotliCompressSync(bytes(build), { params: { [constants.BROTLI_PARAM_QUALITY]: 9 } }).length;
  for (const both of [["train", "simd"], ["train-threads", "threads"]]) {
    // Of what was left out of the package there are 8 bytes; the build without threads has to be there.
    if (both[0] !== "train" && both.some((build) => bytes(build).length <= 8)) continue;
    const [more, less] = both.map(packed);
    assert.ok(more - less < 800_000, `${both[0]} has ${more - less} bytes more than ${both[1]}`);
  }
});

test("a run can be stopped in each of its phases, and the trainer used again", async () => {
  const said = await page.evaluate(
    async ([url, given, many]) => {
      const { Embedder, Index, checkpoints } = window.kiln;
      const model = await Embedder.load(url, { workers: 1 });
      const name = (run) => run.then(() => "it ran", (error) => error.name);
      const stopped = AbortSignal.abort();
      const said = { opening: await name(model.trainer({ training: window.training, kind: "lora", signal: stopped })) };
      const loading = new AbortController();
      said.loading = await name(model.trainer({ training: window.training, kind: "lora", signal: loading.signal, onProgress: () => loading.abort() }));
      const trainer = await model.trainer({ training: window.training, kind: "lora" });
      const texts = given.pairs.map(({ text }) => text);
      const index = await Index.create({ dimensions: model.dimensions, model: model.info.fingerprint });
      await index.add((await model.embed(texts)).map((vector, id) => ({ id, vector, data: { text: texts[id] } })));
      said.before = await name(trainer.fit({ ...given, steps: 2, signal: stopped }));
      const mining = new AbortController();
      const mine = { index, text: ({ data }) => (mining.abort(), data.text) };
      said.mining = await name(trainer.fit({ ...given, steps: 2, mine, signal: mining.signal }));
      // In the midst of the queries, of which there are many batches, and before their answers.
      const queries = new AbortController();
      const { embed } = model;
      let asked = 0;
      model.embed = (texts, options) => {
        asked++;
        return embed.call(model, texts, { ...options, batchTokens: 16, onProgress: () => queries.abort() });
      };
      said.queries = await name(trainer.fit({ ...many, steps: 2, mine: index, signal: queries.signal }));
      delete model.embed;
      // In the midst of the texts whose vectors an adapter learns from, and before its first step.
      const ofVectors = await model.trainer({ training: window.training, kind: "adapter" });
      const vectors = new AbortController();
      const embedded = [];
      const onProgress = ({ step, loss }) => (embedded.push([step, loss]), vectors.abort());
      said.vectors = await name(ofVectors.fit({ ...many, holdBack: 0, signal: vectors.signal, onProgress }));
      ofVectors.dispose();
      // At the first look at what is held back, in the midst of the steps, and at a later look.
      for (const [phase, at] of [["first", 0], ["step", 3], ["look", 4]]) {
        const control = new AbortController();
        const onProgress = ({ step, score }) => step >= at && (phase === "step" || score) && control.abort();
        said[phase] = await name(trainer.fit({ ...given, steps: 9, batchSize: 6, checkEvery: 2, patience: 9, signal: control.signal, onProgress }));
      }
      // Before a run that was kept is gone on with, and in the midst of it.
      const kept = new AbortController();
      const long = { ...given, steps: 100_000, batchSize: 6, holdBack: 0, checkpoint: "phases" };
      said.kept = await name(trainer.fit({ ...long, signal: kept.signal, onProgress: ({ step }) => step >= 10 && kept.abort() }));
      said.resuming = await name(trainer.resume("phases", { signal: stopped }));
      const going = new AbortController();
      const resumed = [];
      said.resumed = await name(trainer.resume("phases", { signal: going.signal, onProgress: ({ step }) => (resumed.push(step), going.abort()) }));
      const names = await checkpoints.names();
      await checkpoints.delete("phases");
      const { steps } = await trainer.fit({ ...given, steps: 2, batchSize: 6 });
      for (const one of [trainer, index, model]) one.dispose();
      return { said, steps, asked, embedded, resumed, names };
    },
    // So many that some are held back, and that many are still to be embedded.
    [MINI, lessons(48), lessons(240)],
  );
  const { steps, asked, embedded, resumed, names, said: errors } = said;
  assert.deepEqual(new Set(Object.values(errors)), new Set(["AbortError"]), JSON.stringify(errors));
  assert.equal(asked, 1);
  assert.ok(embedded.length > 0 && embedded.every(([step, loss]) => step === 0 && loss === undefined), JSON.stringify(embedded));
  // Behind a state, of which there is one every ten steps; it stays there.
  assert.equal(resumed[0] % 10, 1);
  assert.deepEqual([steps, names], [2, ["phases"]]);
});

test("a tab that is closed in the midst of a run loses what came after the last state, and no more", async () => {
  const given = { ...lessons(40), steps: 16, batchSize: 6, holdBack: 0 };
  const whole = await taught(given);
  const other = await page.context().newPage();
  await openKiln(other, server);
  await other.evaluate(
    async ([url, given]) => {
      const model = await window.kiln.Embedder.load(url);
      const trainer = await model.trainer({ training: window.training, kind: "lora", rank: 4, seed: 3 });
      window.step = 0;
      trainer.fit({ ...given, checkpoint: "closed", onProgress: ({ step }) => (window.step = step) });
    },
    [MINI, given],
  );
  // The state of the tenth step is kept while the eleventh is computed.
  await other.waitForFunction(() => window.step >= 12, undefined, { timeout: 120_000 });
  await other.close();
  const again = await page.evaluate(async (url) => {
    const model = await window.kiln.Embedder.load(url);
    const trainer = await model.trainer({ training: window.training, kind: "lora", rank: 4, seed: 3 });
    const seen = [];
    const result = await trainer.resume("closed", { onProgress: ({ step, loss }) => seen.push([step, loss]) });
    trainer.dispose();
    model.dispose();
    return { seen, weights: Array.from(result.adapter.files[1][1]) };
  }, MINI);
  assert.equal(again.seen[0][0], 11);
  const losses = new Map(whole.seen.map(({ step, loss }) => [step, loss]));
  for (const [step, loss] of again.seen) assert.equal(loss, losses.get(step), `step ${step}`);
  assert.deepEqual(again.weights, whole.files[1][1]);
});

test("a run goes on where the browser has no more room to keep it", async () => {
  const given = { ...lessons(40), steps: 16, batchSize: 6, holdBack: 0 };
  const whole = await taught(given);
  const said = [];
  page.on("console", (message) => message.type() === "warning" && said.push(message.text()));
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Storage.overrideQuotaForOrigin", { origin: server.url, quotaSize: 1 });
  const full = await taught({ ...given, checkpoint: "full" });
  assert.deepEqual(full.files, whole.files);
  assert.ok(said.some((line) => /storage for this site is full.*the run goes on, and is not kept/.test(line)), said.join("\n"));
  assert.deepEqual(await page.evaluate(() => window.kiln.checkpoints.names()), []);
  // There is room again.
  await devtools.send("Storage.overrideQuotaForOrigin", { origin: server.url });
  said.length = 0;
  assert.deepEqual((await taught({ ...given, checkpoint: "full" })).files, whole.files);
  assert.deepEqual(said, []);
});

test("a packed model learns: held-back lessons are answered better, and the space is another", async () => {
  const result = await taught({ ...lessons(60), steps: 8, batchSize: 12, learningRate: 2e-3, checkEvery: 4 });
  const { kept, heldBack, taught: learned } = result;
  // About a fifth: which lesson is held back is said by its text alone.
  assert.ok(kept && heldBack + learned === 60 && heldBack >= 3 && heldBack <= 25, JSON.stringify({ kept, heldBack, learned }));
  assert.ok(result.after.mrr >= result.before.mrr && result.after.loss < result.before.loss);
  assert.equal(result.seen[0].step, 0);
  assert.deepEqual(result.seen[0].score, result.before);
  assert.ok(result.seen.at(-1).secondsLeft < 1 && result.seen.every(({ seconds }) => seconds >= 0));
  const config = JSON.parse(Buffer.from(result.files[0][1]).toString());
  assert.deepEqual([config.peft_type, config.r, config.base_model_name_or_path], ["LORA", 4, "mini"]);
  assert.deepEqual(result.again, result.bare);
  assert.notDeepEqual(result.vectors, result.bare);
  const [before, after] = result.fingerprints;
  assert.ok(after.startsWith(`${before}+`));
});

test("a run that is stopped or closed goes on with the same numbers", async () => {
  const given = { ...lessons(40), steps: 13, batchSize: 6, holdBack: 0 };
  const said = await page.evaluate(
    async ([url, given]) => {
      const model = await window.kiln.Embedder.load(url);
      const losses = [];
      const trainer = () => model.trainer({ training: window.training, kind: "lora" });
      const whole = await trainer();
      const first = await whole.fit({ ...given, onProgress: ({ step, loss }) => (losses[step] = loss) });
      whole.dispose();
      const stopped = await trainer();
      const control = new AbortController();
      const error = await stopped
        .fit({ ...given, checkpoint: "test", signal: control.signal, onProgress: ({ step }) => step >= 10 && control.abort() })
        .catch(({ name }) => name);
      stopped.dispose();
      const other = await trainer();
      const seen = [];
      const second = await other.resume("test", { onProgress: ({ step, loss }) => seen.push([step, loss]) });
      const gone = await other.resume("test");
      other.dispose();
      model.dispose();
      const bytes = ({ adapter }) => adapter && Array.from(adapter.files[1][1]);
      return { error, first: { ...first, adapter: bytes(first) }, second: { ...second, adapter: bytes(second) }, losses, seen, gone: gone === undefined };
    },
    [MINI, given],
  );
  assert.equal(said.error, "AbortError");
  assert.equal(said.seen[0][0], 11);
  for (const [step, loss] of said.seen) assert.equal(loss, said.losses[step], `step ${step}`);
  assert.deepEqual(said.second.adapter, said.first.adapter);
  assert.ok(said.first.adapter.length > 1000);
  assert.ok(said.gone, "a run that has ended is not kept");
});

test("a state that was asked for is gone on with by another trainer, with the same numbers", async () => {
  const given = { ...lessons(40), steps: 13, batchSize: 6, holdBack: 0 };
  const whole = await taught(given);
  const said = await page.evaluate(
    async ([url, given, texts]) => {
      const model = await window.kiln.Embedder.load(url);
      const trainer = () => model.trainer({ training: window.training, kind: "lora", rank: 4, seed: 3 });
      const stopped = await trainer();
      const control = new AbortController();
      const onProgress = ({ step }) => step >= 5 && control.abort();
      const error = await stopped.fit({ ...given, signal: control.signal, onProgress }).catch(({ name }) => name);
      // As where it was stored.
      const state = structuredClone(await stopped.state());
      stopped.dispose();
      const other = await trainer();
      const seen = [];
      const { adapter, steps } = await other.resume(state, { onProgress: ({ step, loss }) => seen.push([step, loss]) });
      other.dispose();
      await model.addAdapter("taught", adapter);
      await model.setAdapter("taught");
      const vectors = (await model.embed(texts)).map((vector) => Array.from(vector));
      const names = await window.kiln.checkpoints.names();
      model.dispose();
      return { error, steps, seen, vectors, names, weights: Array.from(adapter.files[1][1]) };
    },
    [MINI, given, TEXTS],
  );
  assert.deepEqual([said.error, said.steps, said.names], ["AbortError", 13, []]);
  assert.ok(said.seen[0][0] > 5, `${said.seen[0]}`);
  const losses = new Map(whole.seen.map(({ step, loss }) => [step, loss]));
  for (const [step, loss] of said.seen) assert.equal(loss, losses.get(step), `step ${step}`);
  assert.deepEqual(said.weights, whole.files[1][1]);
  assert.deepEqual(said.vectors, whole.vectors);
});

test("words that are new to the model are practised longer, unless it is said how long", async () => {
  const said = await page.evaluate(
    async ([url, pairs]) => {
      const model = await window.kiln.Embedder.load(url);
      const all = [];
      for (const how of [{}, { budget: 60_000 }]) {
        const trainer = await model.trainer({ training: window.training, kind: "adapter", rank: 4, seed: 3 });
        const seen = [];
        const onProgress = ({ step, steps, newWords }) => seen.push([step, steps, newWords]);
        const { steps, newWords } = await trainer.fit({ pairs, holdBack: 0.5, ...how, onProgress });
        all.push({ steps, newWords, last: seen.at(-1) });
        trainer.dispose();
      }
      model.dispose();
      return all;
    },
    [MINI, named()],
  );
  assert.deepEqual(said[0], { steps: 300, newWords: true, last: [300, 300, true] });
  assert.ok(said[1].steps <= 60 && !said[1].newWords && !said[1].last[2], JSON.stringify(said[1]));
});

test("of a text that is longer than the model reads the beginning is taught", async () => {
  const said = await page.evaluate(async (url) => {
    const model = await window.kiln.Embedder.load(url);
    const { maxLength } = model.info;
    const beginning = "the harbour is closed because of the storm ".repeat(maxLength / 8 + 1);
    const losses = {};
    for (const kind of ["lora", "adapter"]) {
      losses[kind] = [];
      for (const end of ["an owl", "bread and salt"]) {
        const trainer = await model.trainer({ training: window.training, kind, rank: 2 });
        const pairs = [["why no ship sails", `${beginning}${end}`], ["the moon", "it shines at night"], ["a clock", "it tells the time"]];
        const onProgress = ({ loss }) => loss !== undefined && losses[kind].push(loss);
        await trainer.fit({ pairs, steps: 2, batchSize: 3, holdBack: 0, onProgress });
        trainer.dispose();
      }
    }
    const tokens = await model.countTokens(beginning);
    model.dispose();
    return { maxLength, tokens, losses };
  }, MINI);
  assert.ok(said.tokens >= said.maxLength, `${said.tokens} of ${said.maxLength}`);
  for (const losses of Object.values(said.losses)) {
    assert.equal(losses.length, 4);
    assert.deepEqual(losses.slice(0, 2), losses.slice(2));
  }
});

test("a budget that is used up while texts are embedded ends the run before its first step", async () => {
  const said = await page.evaluate(async (url) => {
    const model = await window.kiln.Embedder.load(url);
    const trainer = await model.trainer({ training: window.training, kind: "adapter", rank: 2 });
    const text = (at) => `${at} ${"the harbour is closed because of the storm ".repeat(40)}`;
    const pairs = Array.from({ length: 300 }, (_, at) => [`number ${at}`, text(at)]);
    const steps = [];
    const onProgress = ({ step }) => steps.push(step);
    const fit = () => trainer.fit({ pairs, holdBack: 0, budget: 200, onProgress }).then(() => "it ran", ({ name, message }) => `${name}: ${message}`);
    const errors = [await fit(), await fit()];
    const { steps: after } = await trainer.fit({ pairs: pairs.slice(0, 3), steps: 2 });
    trainer.dispose();
    model.dispose();
    return { errors, steps, after };
  }, MINI);
  const left = said.errors.map((error) => {
    assert.match(error, /^RangeError: the budget is used up before the first step, with \d+ texts of the lessons still to be embedded; give more, or call it again/);
    return Number(/with (\d+)/.exec(error)[1]);
  });
  // What is embedded stays.
  assert.ok(600 > left[0] && left[0] > left[1] && left[1] > 0, `${left}`);
  assert.ok(said.steps.every((step) => step === 0), `${said.steps}`);
  assert.equal(said.after, 2);
});

test("a budget ends a run in time, and what is worse is not kept", async () => {
  const { steps, seconds, seen } = await taught({ ...lessons(40), budget: 4000, batchSize: 6 });
  // Three steps are measured; after the time is up none is begun, and the lessons that are held back are asked once more.
  const gaps = seen.map((point, at) => point.seconds - (seen[at - 1]?.seconds ?? 0));
  const measured = seen.find(({ step }) => step === 3).seconds;
  const most = Math.max(4, measured) + 2 * Math.max(...gaps);
  assert.ok(steps >= 3 && steps < 1000 && seconds <= most, `${steps} steps in ${seconds} s of ${most}`);
  // What is left is known from the beginning, and how many steps there will be from the first on.
  assert.ok(seen.every(({ secondsLeft }) => secondsLeft >= 0 && secondsLeft <= 4.1), JSON.stringify(seen));
  assert.deepEqual([seen[0].step, seen[0].steps], [0, undefined]);
  const begun = seen.filter(({ step }) => step > 0);
  assert.ok(begun.every(({ step, steps }) => steps >= step && steps < 1000), JSON.stringify(seen));
  const worse = await taught({ ...lessons(40), steps: 12, batchSize: 6, learningRate: 3, patience: 1 }, { load: { weights: "f32" } });
  assert.ok(!worse.kept && worse.files === undefined && worse.steps < 12, JSON.stringify(worse.after));
});

test("an adapter of vectors is learned in a moment, and an index follows it at once", async () => {
  const said = await page.evaluate(
    async ([url, given, texts, foreign]) => {
      const { Embedder, Index } = window.kiln;
      const model = await Embedder.load(url);
      const line = (run) => run().then(() => "it ran", ({ message }) => message);
      const vectors = await model.embed(texts);
      const made = model.info.fingerprint;
      const entries = vectors.map((vector, id) => ({ id, vector, data: texts[id] }));
      const indexed = async (precision) => {
        const index = await Index.create({ dimensions: model.dimensions, precision, model: made });
        await index.add(entries);
        return index;
      };
      const trainer = await model.trainer({ training: window.training, kind: "adapter", rank: 4, seed: 3 });
      const seen = [];
      const result = await trainer.fit({ ...given, steps: 40, learningRate: 2e-3, onProgress: (progress) => seen.push(progress) });
      const { kind } = trainer;
      trainer.dispose();
      await model.addAdapter("taught", result.adapter);
      await model.setAdapter("taught");
      const taught = await model.embed(texts);
      const fingerprint = model.info.fingerprint;
      const found = {};
      for (const precision of ["f32", "int8", "binary+int8"]) {
        const index = await indexed(precision);
        const adapted = await index.adapted(result.adapter);
        const [hit] = await adapted.search(taught[1], { k: 1, model: fingerprint });
        found[precision] = { vectors: (await adapted.vectors([0, 1, 2])).map((vector) => Array.from(vector)), model: adapted.model, hit: [hit.id, hit.data], size: index.size };
        if (precision === "f32") found.mixed = await line(() => index.search(taught[1], { model: fingerprint }));
        if (precision === "f32") found.twice = await line(() => adapted.adapted(result.adapter));
        index.dispose();
        adapted.dispose();
      }
      // Also where it does not say which model made it, and after it was kept.
      const unnamed = await Index.create({ dimensions: model.dimensions });
      await unnamed.add(entries);
      const moved = await unnamed.adapted(result.adapter);
      const kept = await Index.import(await moved.export());
      found.unnamed = [await line(() => moved.adapted(result.adapter)), await line(() => kept.adapted(result.adapter)), kept.model === undefined];
      // Somebody's own name of a model, for an adapter that names none.
      const named = await Index.create({ dimensions: model.dimensions, model: "mini+large" });
      await named.add(entries);
      const [config, [name, bytes]] = result.adapter.files;
      const nameless = bytes.slice();
      nameless[new TextDecoder().decode(bytes.subarray(0, 1000)).indexOf("kiln.base_fingerprint")] ^= 1;
      const anonymous = { files: [config, [name, nameless]] };
      found.named = await line(() => named.adapted(anonymous).then((index) => index.dispose()));
      found.foreign = await line(() => named.adapted(result.adapter));
      for (const one of [unnamed, moved, kept, named]) one.dispose();
      const binary = await indexed("binary");
      found.binary = await line(() => binary.adapted(result.adapter));
      binary.dispose();
      // It goes on from what it was, with no kind said.
      const more = await model.trainer({ training: window.training, rank: 4 });
      const before = more.kind;
      await more.startFrom(result.adapter);
      const again = [before, more.kind];
      more.dispose();
      await model.setAdapter(null);
      const bare = await model.embed(texts);
      model.dispose();
      const loaded = await Embedder.load(url, { adapter: Object.fromEntries(result.adapter.files) });
      const same = (await loaded.embed(texts)).every((vector, at) => vector.every((x, i) => x === taught[at][i]));
      loaded.dispose();
      const other = await Embedder.load(foreign);
      found.other = await line(() => other.addAdapter("x", result.adapter));
      other.dispose();
      const plain = (vectors) => vectors.map((vector) => Array.from(vector));
      const changed = bare.some((vector, at) => vector.some((x, i) => x !== vectors[at][i]));
      return { ...result, adapter: undefined, names: result.adapter.files.map(([name]) => name), seen, kind, again, found, fingerprint, taught: plain(taught), bare: plain(bare), same, changed };
    },
    [MINI, lessons(60), TEXTS, "/models/model.kiln"],
  );
  assert.ok(said.kept && said.kind === "adapter" && said.after.loss < said.before.loss, JSON.stringify(said.after));
  assert.deepEqual(said.names, ["config.json", "model.safetensors"]);
  assert.deepEqual(said.again, ["lora", "adapter"]);
  assert.ok(said.same && !said.changed);
  assert.notDeepEqual(said.taught, said.bare);
  assert.ok(said.seen.every(({ kind }) => kind === "adapter"));
  for (const precision of ["f32", "int8", "binary+int8"]) {
    const { vectors, model, hit, size } = said.found[precision];
    const least = Math.min(...vectors.map((vector, at) => cosine(vector, said.taught[at])));
    assert.ok(least > (precision === "f32" ? 0.999999 : 0.9995), `${precision}: ${least}`);
    assert.deepEqual([model, hit, size], [said.fingerprint, [1, TEXTS[1]], 3]);
  }
  assert.match(said.found.mixed, /^the query is of the model "[^"]+", and the index has vectors of "/);
  assert.match(said.found.binary, /signs of its vectors alone/);
  for (const twice of [said.found.twice, ...said.found.unnamed.slice(0, 2)]) assert.match(twice, /adapted already/);
  assert.deepEqual([said.found.unnamed[2], said.found.named], [true, "it ran"]);
  assert.match(said.found.foreign, /of another model, "mini"/);
  assert.match(said.found.other, /another model|for vectors of/);
});

test("an index is embedded again in the background, and the old one answers meanwhile", async () => {
  const said = await page.evaluate(
    async ([url, given]) => {
      const { Embedder, Index } = window.kiln;
      const line = (run) => run().then(() => "it ran", ({ name, message }) => `${name}: ${message}`);
      const model = await Embedder.load(url);
      const texts = Array.from({ length: 70 }, (_, i) => `${given.pairs[i % given.pairs.length].text} ${i}`);
      const index = await Index.create({ dimensions: model.dimensions, precision: "f32", model: model.info });
      await index.add((await model.embed(texts)).map((vector, id) => ({ id, vector, data: id % 2 ? texts[id] : { text: texts[id] } })));
      const before = index.model;
      const trainer = await model.trainer({ training: window.training, kind: "lora", rank: 2, seed: 1 });
      const { adapter } = await trainer.fit({ pairs: given.pairs.slice(0, 8), steps: 2, batchSize: 4, learningRate: 5e-3 });
      trainer.dispose();
      await model.addAdapter("taught", adapter);
      await model.setAdapter("taught");
      const seen = [];
      let meanwhile;
      const running = index.reembedded(model, {
        onProgress: (progress) => {
          seen.push(progress);
          meanwhile ??= index.search(new Float32Array(index.dimensions).fill(1), { k: 3 });
        },
      });
      const next = await running;
      const [vector] = await model.embed([texts[41]]);
      const [hit] = await next.search(vector, { k: 1, model: model.info });
      const found = {
        seen: seen.map(({ texts, total, textsPerSecond }) => [texts, total, textsPerSecond > 0]),
        meanwhile: (await meanwhile).length,
        hit: [hit.id, hit.data, hit.score],
        sizes: [index.size, next.size],
        models: [index.model === before, next.model === model.info.fingerprint, next.model !== before],
        precision: next.precision,
        mixed: await line(() => index.search(vector, { model: model.info })),
      };
      // Adapters that change places meanwhile, no texts, no embedder, and nobody who waits.
      const switched = index.reembedded(model, { onProgress: () => model.setAdapter(null) });
      found.switched = await line(() => switched);
      found.textless = await line(() => index.reembedded(model, { text: () => undefined }));
      found.noEmbedder = await line(() => index.reembedded({}));
      const gone = new AbortController();
      found.aborted = await line(() => index.reembedded(model, { signal: gone.signal, onProgress: () => gone.abort() }));
      for (const one of [index, next, model]) one.dispose();
      return found;
    },
    [MINI, lessons(40)],
  );
  assert.deepEqual(said.seen, [[32, 70, true], [64, 70, true], [70, 70, true]]);
  assert.deepEqual([said.meanwhile, said.sizes, said.models, said.precision], [3, [70, 70], [true, true, true], "f32"]);
  assert.equal(said.hit[0], 41);
  assert.ok(typeof said.hit[1] === "string" && said.hit[2] > 0.9999, `${said.hit}`);
  assert.match(said.mixed, /^Error: the query is of the model "/);
  assert.match(said.switched, /^Error: the model was given another adapter while/);
  assert.match(said.textless, /^TypeError: the text of 0 is undefined, not a string/);
  assert.match(said.noEmbedder, /^TypeError: .* is no embedder; give the one/);
  assert.match(said.aborted, /^AbortError/);
});

test("wrong answers are mined from an index of the model, and never the right ones", async () => {
  const said = await page.evaluate(
    async ([url, { pairs }]) => {
      const { Embedder, Index } = window.kiln;
      const model = await Embedder.load(url);
      const line = (run) => run().then(() => "it ran", ({ name, message }) => `${name}: ${message}`);
      const texts = [...new Set(pairs.map(({ text }) => text)), "a stove", "a mountain", "ink", "a branch"];
      const vectors = await model.embed(texts);
      const indexed = async (precision, by) => {
        const index = await Index.create({ dimensions: model.dimensions, precision, model: by });
        await index.add(texts.map((text, id) => ({ id, vector: vectors[id], data: { text } })));
        return index;
      };
      const own = model.info.fingerprint;
      const [index, other, binary] = await Promise.all([indexed("int8", own), indexed("int8", "other"), indexed("binary", own)]);
      const trainer = await model.trainer({ training: window.training, kind: "adapter" });
      const fit = (mine) => trainer.fit({ pairs, steps: 2, mine });
      const said = {
        mined: (await fit(index)).mined,
        fewer: (await fit({ index, perQuery: 1, text: ({ data }) => data.text })).mined,
        none: (await fit()).mined,
        other: await line(() => fit(other)),
        binary: await line(() => fit(binary)),
        wrong: await line(() => fit({ index: 7 })),
        textless: await line(() => fit({ index, text: () => undefined })),
      };
      // What is mined is in the state of a run.
      const stop = new AbortController();
      await trainer.fit({ pairs, steps: 100_000, mine: index, signal: stop.signal, onProgress: () => stop.abort() }).catch(() => {});
      const { files } = await trainer.state();
      said.lessons = JSON.parse(new TextDecoder().decode(files.find(([name]) => name === "state.json")[1])).taught;
      said.texts = texts;
      for (const one of [trainer, index, other, binary, model]) one.dispose();
      return said;
    },
    [MINI, lessons(24)],
  );
  assert.ok(said.mined > said.fewer && said.fewer > 0 && said.fewer <= 24 && said.none === 0, JSON.stringify(said));
  assert.ok(said.lessons.some(({ neg }) => neg.length > 0));
  for (const { query, pos, neg } of said.lessons) {
    assert.ok(neg.length <= 3 && neg.every((text) => said.texts.includes(text) && !pos.includes(text)), `${query}: ${neg}`);
  }
  assert.match(said.other, /of another model, or of other adapters/);
  assert.match(said.binary, /^RangeError: mine has an index in binary/);
  assert.match(said.wrong, /^TypeError: mine is an object, neither an Index/);
  assert.match(said.textless, /^TypeError: the text of \d+ is undefined/);
});

test("adapters are replaced where they compute, and removed; a run that was kept is forgotten", async () => {
  const said = await page.evaluate(
    async ([url, given]) => {
      const { Embedder, checkpoints } = window.kiln;
      const model = await Embedder.load(url, { workers: 2 });
      const plan = { ...given, steps: 4, holdBack: 0, learningRate: 1e-2 };
      const trained = () => model.trainer({ training: window.training, kind: "adapter", rank: 2 });
      const trainer = await trained();
      const [one, two] = [await trainer.fit(plan), await trainer.fit(plan)];
      // The same where nobody waits for the first.
      const hasty = await trained();
      const both = await Promise.all([hasty.fit(plan), hasty.fit(plan)]);
      hasty.dispose();
      const same = (a, b) => a.every((x, i) => x === b[i]);
      const inTurn = [one, two].every(({ adapter }, at) => same(adapter.files[1][1], both[at].adapter.files[1][1]));
      const prints = [model.info.fingerprint];
      const note = () => prints.push(model.info.fingerprint);
      // So many that two workers share them.
      const texts = Array.from({ length: 96 }, (_, at) => `a rope of ${at} metres`);
      await model.addAdapter("a", one.adapter);
      await model.setAdapter("a");
      note();
      const first = await model.embed(texts);
      await model.setAdapter(null);
      // What is asked for before it is replaced is of the first, also where the switch to it is still under way.
      const running = Promise.all([model.embed(texts), model.setAdapter("a"), model.embed(texts)]);
      await model.addAdapter("a", two.adapter);
      const [, , during] = await running;
      const second = await model.embed(texts);
      note();
      await model.setAdapter(null);
      await model.addAdapter("b", two.adapter);
      await model.setAdapter("b");
      const replaced = await model.embed(texts);
      await model.removeAdapter("b");
      await model.setAdapter("a");
      const far = (a, b) => Math.max(...a.map((x, i) => Math.abs(x - b[i])));
      const fromEach = (vectors) => vectors.map((vector, at) => [first, replaced].map((by) => far(vector, by[at])));
      const name = model.adapter;
      await model.removeAdapter("a");
      note();
      const gone = model.adapter;
      const unknown = await model.removeAdapter("a").catch(({ name }) => name);
      const stop = new AbortController();
      await trainer.fit({ ...plan, steps: 100_000, checkpoint: "stopped", signal: stop.signal, onProgress: ({ step }) => step >= 10 && stop.abort() }).catch(() => {});
      const names = await checkpoints.names();
      await checkpoints.delete("stopped");
      const resumed = await trainer.resume("stopped");
      trainer.dispose();
      model.dispose();
      return { prints, inTurn, during: fromEach(during), second: fromEach(second), name, gone, unknown, names, resumed: resumed === undefined };
    },
    [MINI, lessons(12)],
  );
  const [bare, first, second, last] = said.prints;
  assert.ok(first.startsWith(`${bare}+`) && second.startsWith(`${bare}+`) && first !== second && last === bare, String(said.prints));
  assert.ok(said.inTurn, "a second run goes on from the first");
  assert.ok(said.during.every(([first, second]) => first < 1e-5 && second > 1e-4), JSON.stringify(said.during));
  assert.ok(said.second.every(([first, second]) => second < 1e-5 && first > 1e-4), JSON.stringify(said.second));
  assert.deepEqual([said.name, said.gone, said.unknown], ["a", null, "RangeError"]);
  assert.ok(said.names.includes("stopped") && said.resumed);
});

test("memory stays flat over trainers that are disposed", async (run) => {
  const resident = await pageMemory(browser);
  if (typeof resident === "string") return run.skip(resident);
  const again = (times) => page.evaluate(async ([url, pairs, times]) => {
    const model = await window.kiln.Embedder.load(url);
    for (let time = 0; time < times; time++) {
      const trainer = await model.trainer({ training: window.training, kind: "lora", rank: 4, seed: time });
      await trainer.fit({ pairs, steps: 1, batchSize: 2, holdBack: 0 });
      trainer.dispose();
    }
    model.dispose();
  }, [MINI, lessons(4).pairs, times]);
  await again(8);
  const early = await resident();
  await again(16);
  const late = await resident();
  run.diagnostic(`${early.toFixed(0)} MB after 8 trainers, ${late.toFixed(0)} MB after 24`);
  // A trainer takes some 100 MB; one in ten that stayed would be 160.
  assert.ok(late < early + 150, `${early} MB after 8 trainers, ${late} MB after 24`);
});

test("lessons and adapters that make no sense are one line", async () => {
  const fetched = server.seen.filter(({ path }) => path === MINI).length;
  const said = await page.evaluate(async ([url, other]) => {
    const model = await window.kiln.Embedder.load(url);
    const trainer = await model.trainer({ training: window.training, kind: "lora" });
    const line = (run) => run().then(() => "it ran", (error) => `${error.name}: ${error.message}`);
    const fit = (options) => line(() => trainer.fit(options));
    const pair = { query: "q", text: "a" };
    const said = {
      none: await fit({ pairs: [] }),
      text: await fit({ pairs: "q" }),
      number: await fit({ pairs: [["q", 7]] }),
      both: await fit({ pairs: [pair, ["r", "b"]], negatives: [pair] }),
      same: await fit({ pairs: [["q", "Q"]] }),
      alone: await fit({ pairs: [pair] }),
      repeated: await fit({ pairs: Array.from({ length: 20 }, () => pair) }),
      lonely: await fit({ pairs: [pair, ["r", "b"]], negatives: [["s", "c"]] }),
      steps: await fit({ pairs: [pair, ["r", "b"]], steps: 0 }),
      rate: await fit({ pairs: [pair, ["r", "b"]], learningRate: NaN }),
      share: await fit({ pairs: [pair, ["r", "b"]], holdBack: 1 }),
      state: await line(() => trainer.resume({ files: [] })),
      stateless: await line(() => trainer.resume(7)),
      rank: await line(() => model.trainer({ training: window.training, rank: 0 })),
      kind: await line(() => model.trainer({ training: window.training, kind: "dora" })),
      target: await line(() => model.trainer({ training: window.training, kind: "lora", targets: ["nothing"] })),
      without: await line(() => model.trainer()),
      version: await line(() => model.trainer({ training: { ...window.training, version: "0.0.9" } })),
      unknown: await line(() => model.setAdapter("other")),
      empty: await line(() => model.addAdapter("x", {})),
      // It still works.
      works: (await trainer.fit({ pairs: [pair, ["r", "b"]], steps: 2 })).steps,
    };
    const { adapter } = await trainer.fit({ pairs: [pair, ["r", "b"]], steps: 1 });
    trainer.dispose();
    model.dispose();
    const foreign = await window.kiln.Embedder.load(other);
    said.foreign = await line(() => foreign.addAdapter("x", adapter));
    const cut = { files: adapter.files.map(([name, bytes]) => [name, bytes.slice(0, bytes.length / 2)]) };
    said.cut = await line(() => foreign.addAdapter("x", cut));
    foreign.dispose();
    return said;
  }, [MINI, "/models/latent.kiln"]);
  assert.match(said.none, /no lesson to learn from/);
  assert.match(said.text, /^TypeError: pairs are "q"/);
  assert.match(said.number, /^TypeError: the text of pairs\[0\] is 7/);
  assert.match(said.both, /lessons 1 and 1 contradict/);
  assert.match(said.same, /answers itself/);
  for (const one of [said.alone, said.repeated]) assert.match(one, /one lesson without a wrong answer/);
  assert.match(said.lonely, /^RangeError: there are negatives for "s"/);
  assert.match(said.steps, /^RangeError: steps is 0/);
  assert.match(said.rate, /^RangeError: learningRate is NaN/);
  assert.match(said.share, /^RangeError: holdBack is 1/);
  assert.match(said.state, /state of training has no/);
  assert.match(said.stateless, /^TypeError: the state is 7, neither one that trainer\.state\(\) gave nor the name of a checkpoint/);
  assert.match(said.rank, /^RangeError: rank is 0/);
  assert.match(said.kind, /^RangeError: kind "dora" is unknown; known are auto, lora, adapter/);
  assert.match(said.target, /^RangeError: .*"nothing" names no projection/);
  assert.match(said.without, /^TypeError: a trainer needs the package kiln-embed-train; install it, import training from "kiln-embed-train", and call model\.trainer\(\{ training \}\)$/);
  assert.match(said.version, /^RangeError: training is kiln-embed-train "0\.0\.9", and this is kiln-embed [\d.]+; install kiln-embed-train@[\d.]+$/);
  assert.equal(server.seen.filter(({ path }) => path === MINI).length - fetched, 1, "a wrong setting fetches no kept model again");
  assert.match(said.unknown, /^RangeError: there is no adapter "other"/);
  assert.match(said.empty, /no adapter_config\.json/);
  assert.equal(said.works, 2);
  assert.match(said.foreign, /of another model, "mini"/);
  assert.match(said.cut, /^Error: /);
});
