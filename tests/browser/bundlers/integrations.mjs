// kiln-embed for Orama and LangChain.js with the real packages, and its types with the real compiler. By
// tests/bundlers.sh: integrations.mjs MODEL

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { Document } from "@langchain/core/documents";
import { Embeddings } from "@langchain/core/embeddings";
import { MemoryVectorStore } from "@langchain/classic/vectorstores/memory";
import { create, insert, insertMultiple, search, update } from "@orama/orama";
import { Embedder, cosine } from "kiln-embed";
import { KilnEmbeddings } from "kiln-embed/langchain";
import { pluginKiln } from "kiln-embed/orama";

const [source] = process.argv.slice(2);
const TEXTS = [
  "Bread keeps longest in a box at room temperature, and best in the freezer.",
  "The moon raises two tides a day on most coasts.",
  "A dull knife is more dangerous than a sharp one.",
  "Compost wants green scraps, brown leaves and a little patience.",
];
const QUERY = "why does the sea rise and fall";

// LangChain.js
const embeddings = await KilnEmbeddings.load(source, { device: "cpu" });
assert.ok(embeddings instanceof Embeddings);
const { model } = embeddings;
const [one] = await embeddings.embedDocuments([TEXTS[1]]);
assert.ok(Array.isArray(one) && one.length === model.dimensions);
assert.ok(cosine(one, await model.embed(TEXTS[1])) > 0.999999);
assert.deepEqual(await embeddings.embedDocuments([]), []);
const store = await MemoryVectorStore.fromDocuments(TEXTS.map((pageContent, id) => new Document({ pageContent, metadata: { id } })), embeddings);
const [near] = await store.similaritySearch(QUERY, 1);
assert.equal(near.metadata.id, 1);
const [[, score]] = await store.similaritySearchWithScore(QUERY, 1);
assert.ok(Math.abs(score - (await model.similarity(QUERY, TEXTS[1]))) < 1e-5, `${score}`);
await assert.rejects(embeddings.embedDocuments(["a", 7]), /TypeError: texts\[1\] is 7/);
assert.throws(() => new KilnEmbeddings({}), /KilnEmbeddings needs a model/);

// Prompts, as sentence-transformers takes them.
const asked = [];
const prompted = {
  dimensions: 2,
  info: { prompts: { query: "query: ", passage: "passage: " } },
  embed: async (texts, { prompt } = {}) => {
    asked.push(prompt);
    return typeof texts === "string" ? new Float32Array(2) : texts.map(() => new Float32Array(2));
  },
};
const withPrompts = new KilnEmbeddings({ model: prompted });
await withPrompts.embedQuery("a");
await withPrompts.embedDocuments(["a"]);
await new KilnEmbeddings({ model: prompted, query: {} }).embedQuery("a");
assert.deepEqual(asked, ["query", "passage", undefined]);
// Of a model that has neither none, whatever its default is.
asked.length = 0;
const ofOthers = { ...prompted, info: { prompts: { sts: "sts: " }, defaultPrompt: "sts" }, embed: async (text, { promptText } = {}) => new Float32Array([asked.push(promptText), 0]) };
await new KilnEmbeddings({ model: ofOthers }).embedQuery("a");
assert.deepEqual(asked, [""]);

// Orama
const plugin = pluginKiln({ model, properties: ["title", "meta.body"] });
const schema = { title: "string", meta: { body: "string" }, embedding: `vector[${model.dimensions}]` };
const database = create({ schema, plugins: [plugin] });
const documents = TEXTS.map((body, at) => ({ title: `text ${at}`, meta: { body } }));
await insert(database, documents[0]);
await insertMultiple(database, documents.slice(1, 3));
const last = documents.slice(3);
await plugin.fill(last);
assert.equal(last[0].embedding.length, model.dimensions);
await insertMultiple(database, last);
for (const mode of ["vector", "hybrid"]) {
  const { hits } = await search(database, { mode, term: QUERY, limit: 2 });
  assert.equal(hits[0].document.title, "text 1", mode);
}
// Words alone are Orama's own.
assert.equal((await search(database, { term: "knife" })).hits[0].document.title, "text 2");
const found = await search(database, { mode: "vector", term: QUERY, includeVectors: true });
const expected = await model.similarity(QUERY, `text 1\n${TEXTS[1]}`);
assert.ok(Math.abs(found.hits[0].score - expected) < 1e-4, `${found.hits[0].score} ${expected}`);
assert.equal((await search(database, { mode: "vector", term: QUERY, similarity: 0.99 })).hits.length, 0);
await update(database, found.hits[0].id, { title: "text 5", meta: { body: "Owls hunt at night." } });
assert.equal((await search(database, { mode: "vector", term: "birds in the dark" })).hits[0].document.title, "text 5");
await assert.rejects(async () => search(database, { mode: "vector", term: "" }), /needs a term, or a vector/);
assert.throws(() => pluginKiln({ model }), /pluginKiln needs properties/);
assert.throws(() => pluginKiln({ properties: ["a"] }), /pluginKiln needs a model/);
model.dispose();
await assert.rejects(async () => insert(database, documents[0] && { title: "late" }), /the embedder is disposed/);

// Types
writeFileSync(
  "types.ts",
  `import { Embedder, Index, Reranker, clearCache } from "kiln-embed";
import { KilnEmbeddings } from "kiln-embed/langchain";
import { pluginKiln } from "kiln-embed/orama";
import training from "kiln-embed-train";
import webgpu from "kiln-embed-webgpu";
import { create } from "@orama/orama";
import type { Embeddings } from "@langchain/core/embeddings";

export async function all(): Promise<void> {
  const model: Embedder = await Embedder.load("model.kiln", { threads: 2, weights: "int8", webgpu });
  const { kind }: { kind: "lora" | "adapter" } = await model.trainer({ training });
  // @ts-expect-error: a trainer needs its add-on
  await model.trainer();
  // @ts-expect-error: the other add-on
  await Embedder.load("model.kiln", { webgpu: training });
  const vectors: Float32Array[] = await model.embed(["a"]);
  const index = await Index.create<{ page: number }>({ dimensions: model.dimensions });
  await index.add([{ id: 1, vector: vectors[0]!, data: { page: 7 } }]);
  const page: number | undefined = (await index.search(vectors[0]!))[0]?.data?.page;
  const embeddings: Embeddings = new KilnEmbeddings({ model, query: { prompt: "query" } });
  const database = create({ schema: { text: "string" } as const, plugins: [pluginKiln({ model, properties: ["text"] })] });
  // @ts-expect-error: no such device
  await Embedder.load("model.kiln", { device: "abacus" });
  // @ts-expect-error: a reranker takes no adapters
  await Reranker.load("folder", { adapter: "adapters" });
  await clearCache();
  console.log(kind, page, embeddings, database, await Reranker.load("folder"));
}
`,
);
// With what browsers have, and without.
for (const lib of [["--lib", "es2022,dom,dom.iterable"], ["--lib", "es2022", "--types", "node"]]) {
  execFileSync("node_modules/.bin/tsc", [...lib, "--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext", "types.ts"], { stdio: "inherit" });
}
console.log("LangChain.js, Orama and the types: as they should be");
