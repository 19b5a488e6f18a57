import { Embedder, Index } from "kiln-embed";
import training from "kiln-embed-train";
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
  const model = await Embedder.load("/model.kiln", {
    device,
    webgpu,
    onProgress: ({ stage, loaded, total }) => (status.textContent = stage === "download" ? `${loaded} of ${total ?? "?"} bytes` : stage),
  });
  const index = await Index.create({ dimensions: model.dimensions });
  const embedAll = async () => {
    const vectors = await model.embed(TEXTS);
    await index.add(TEXTS.map((text, at) => ({ id: at, vector: vectors[at], data: text })));
  };
  const search = async () => {
    const found = await index.search(await model.embed(query.value), { k: 3 });
    hits.replaceChildren(
      ...found.map(({ score, data }) => {
        const item = Object.assign(document.createElement("li"), { textContent: `${score.toFixed(2)} ${data} ` });
        item.append(Object.assign(document.createElement("button"), { textContent: "That is it", onclick: () => teach(data).catch(failed) }));
        return item;
      }),
    );
  };
  const failed = ({ message }) => (status.textContent = message);
  // Teaches that a text answers the query, and that the others do not; what was taught before is forgotten.
  const teach = async (text) => {
    status.textContent = "learning";
    const trainer = await model.trainer({ training });
    const lessons = {
      pairs: [{ query: query.value, text }],
      negatives: TEXTS.filter((other) => other !== text).map((other) => ({ query: query.value, text: other })),
      steps: 20,
    };
    const { adapter } = await trainer.fit(lessons).finally(() => trainer.dispose());
    await model.addAdapter("taught", adapter);
    await model.setAdapter("taught");
    await embedAll();
    await search();
    status.textContent = `learned, and computed on ${model.device}`;
  };
  await embedAll();
  query.addEventListener("input", search);
  await search();
  status.textContent = `computed on ${model.device}`;
} catch (error) {
  status.textContent = error.message;
}
