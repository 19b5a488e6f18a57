// Searches lines of a text by meaning, in Node, Deno or Bun:
//
//   node search.mjs model.kiln notes.txt "how do I keep bread fresh?"

import { readFile } from "node:fs/promises";
import { Embedder, Index } from "kiln-embed";

const [source, path, query] = process.argv.slice(2);
if (query === undefined) {
  console.error("search.mjs MODEL FILE QUERY");
  process.exit(2);
}
const model = await Embedder.load(source);
const index = await Index.create({ dimensions: model.dimensions });
const lines = (await readFile(path, "utf8")).split("\n").filter((line) => line.trim() !== "");
const vectors = await model.embed(lines);
await index.add(lines.map((data, id) => ({ id, vector: vectors[id], data })));
for (const { score, data } of await index.search(await model.embed(query), { k: 3 })) {
  console.log(score.toFixed(3), data);
}
model.dispose();
index.dispose();
