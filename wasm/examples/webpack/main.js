import { Embedder, Index } from "kiln-embed";
import webgpu from "kiln-embed-webgpu";

const TEXTS = [
  "Bread keeps longest in a box at room temperature, and best in the freezer.",
  "The moon raises two tides a day on most coasts.",
  "A dull knife is more dangerous than a sharp one.",
  "Compost wants green scraps, brown leaves and a little patience.",
];

const status = document.getElementById("status");
const hits = document.getElementById("hits");
const query = document.getElementById("query");

try {
  // ?device=webgpu insists on the GPU.
  const device = new URLSearchParams(location.search).get("device") ?? "auto";
  const model = await Embedder.load("model.kiln", {
    device,
    webgpu,
    onProgress: ({ stage, loaded, total }) => (status.textContent = stage === "download" ? `${loaded} of ${total ?? "?"} bytes` : stage),
  });
  const index = await Index.create({ dimensions: model.dimensions });
  const vectors = await model.embed(TEXTS);
  await index.add(TEXTS.map((text, at) => ({ id: at, vector: vectors[at], data: text })));
  const search = async () => {
    const found = await index.search(await model.embed(query.value), { k: 3 });
    hits.replaceChildren(
      ...found.map(({ score, data }) => Object.assign(document.createElement("li"), { textContent: `${score.toFixed(2)} ${data}` })),
    );
  };
  query.addEventListener("input", search);
  await search();
  status.textContent = `computed on ${model.device}`;
} catch (error) {
  status.textContent = error.message;
}
