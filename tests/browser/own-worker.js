// A module worker of a page's own that uses kiln-embed (embed.test.mjs, threads.test.mjs).

import { Embedder } from "/pkg/index.js";

onmessage = async ({ data: { url, texts, options } }) => {
  try {
    const model = await Embedder.load(url, { device: "cpu", ...options });
    const vectors = await model.embed(texts);
    model.dispose();
    postMessage({ vectors: vectors.map((vector) => [...vector]), device: model.device });
  } catch (error) {
    postMessage({ error: `${error.name}: ${error.message}` });
  }
};
