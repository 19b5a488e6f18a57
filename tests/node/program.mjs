// A user's program, which the tests run in each runtime: what it is told to do is its argument, in JSON, and what
// came of it is printed, in JSON.

import { Embedder, Index, Reranker } from "kiln-embed";
import training from "kiln-embed-train";

const { source, options, texts, rerank, index, teach, forget } = JSON.parse(process.argv[2]);
const start = performance.now();
const found = {};

/** What a call says that fails. */
const said = (run) => run().then(() => "it ran", (error) => `${error.name}: ${error.message}`);

const model = await Embedder.load(source, options);
const first = await model.embed(texts[0]);
Object.assign(found, { first: performance.now() - start, device: model.device, dimensions: first.length });
found.vectors = (await model.embed(texts, { batchTokens: 512 })).map((vector) => [...vector]);

// Enough for helpers, where there are some, and long enough to be stopped.
const many = Array.from({ length: 200 }, (_, at) => `${at} ${"boats and ships in the harbour ".repeat(1 + (at % 9))}`);
const whole = await model.embed(many);
const alone = await model.embed(many[8]);
found.same = alone.every((x, at) => Math.abs(x - whole[8][at]) < 1e-5);
const stop = new AbortController();
found.aborted = await said(() => model.embed(many, { signal: stop.signal, onProgress: () => stop.abort() }));
found.wrong = await said(() => model.embed(["a", 7]));

if (index) {
  const made = await Index.create({ dimensions: model.dimensions, model: model.info.fingerprint });
  await made.add(whole.map((vector, id) => ({ id, vector, data: { text: many[id] } })));
  await made.remove([0]);
  found.hit = (await made.search(whole[5], { k: 1 }))[0];
  await made.save("a / name");
  const again = await Index.load("a / name");
  found.names = await Index.names();
  found.saved = [again.size, (await again.search(whole[5], { k: 1 }))[0].data.text === many[5]];
  await Index.delete("a / name");
  found.deleted = [await Index.names(), await Index.load("a / name")];
  if (!forget) for (const one of [made, again]) one.dispose();
}
if (rerank) {
  const reranker = await Reranker.load(rerank.source);
  found.scores = [...(await reranker.scores(rerank.query, rerank.texts))];
  if (!forget) reranker.dispose();
}
if (teach) {
  const trainer = await model.trainer({ training, kind: "lora" });
  const pairs = texts.slice(0, 6).map((text, at) => [`number ${at}`, text]);
  const { steps } = await trainer.fit({ pairs, steps: 2 });
  found.taught = { steps, device: trainer.device };
  if (!forget) trainer.dispose();
}
if (!forget) model.dispose();
// All ends by itself: nothing here says so.
console.log(JSON.stringify(found));
