// A module worker of a page's own that uses kiln-embed (embed.test.mjs, threads.test.mjs).

import { Embedder } from "/pkg/index.js";
import training from "/pkg-train/index.js";

onmessage = async ({ data: { url, texts, options, lessons } }) => {
  try {
    const model = await Embedder.load(url, { device: "cpu", ...options });
    const vectors = await model.embed(texts);
    const trainer = lessons && (await model.trainer({ training, kind: "lora" }));
    const taught = await trainer?.fit({ ...lessons, steps: 1 });
    trainer?.dispose();
    model.dispose();
    postMessage({ vectors: vectors.map((vector) => [...vector]), device: model.device, taught: taught && { steps: taught.steps, device: trainer.device } });
  } catch (error) {
    postMessage({ error: `${error.name}: ${error.message}` });
  }
};
