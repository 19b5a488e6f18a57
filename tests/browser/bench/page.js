// One page for both: loads one of them and embeds the same texts. Called by bench.mjs.

const length = (vector) => Math.hypot(...vector);

async function kiln(model, device, threads, workers) {
  const { Embedder } = await import("/pkg/index.js");
  const { default: webgpu } = await import("/pkg-webgpu/index.js");
  const embedder = await Embedder.load(model, { cache: false, device, webgpu, threads, workers });
  return {
    device: embedder.device,
    embed: async (texts) => (await embedder.embed(texts)).map((vector) => Array.from(vector)),
  };
}

async function transformersJs(dtype, device, threads) {
  const { pipeline, env } = await import("/peer/dist/transformers.min.js");
  env.allowRemoteModels = false;
  env.allowLocalModels = true;
  env.localModelPath = "/models/";
  env.backends.onnx.wasm.wasmPaths = "/ort/";
  env.backends.onnx.wasm.numThreads = threads;
  env.useBrowserCache = false;
  const extract = await pipeline("feature-extraction", "onnx", { dtype, device });
  return {
    device,
    embed: async (texts) => (await extract(texts, { pooling: "mean", normalize: true })).tolist(),
  };
}

/** Time to the first vector, then texts per second over rounds of all texts. */
window.measure = async (who, what, device, texts, batch, seconds, threads, workers) => {
  if (threads > 1 && !crossOriginIsolated) throw new Error("threads need a page that is isolated");
  const start = performance.now();
  const model = await (who === "kiln" ? kiln : transformersJs)(what, device, threads, workers);
  // Our workers share the texts of a call.
  if (who === "kiln" && workers > 1) batch = texts.length;
  const first = (await model.embed([texts[0]]))[0];
  const cold = performance.now() - start;
  const vectors = [];
  for (let at = 0; at < texts.length; at += batch) vectors.push(...(await model.embed(texts.slice(at, at + batch))));
  let done = 0;
  const began = performance.now();
  while (performance.now() - began < seconds * 1000) {
    for (let at = 0; at < texts.length; at += batch) await model.embed(texts.slice(at, at + batch));
    done += texts.length;
  }
  const rate = done / ((performance.now() - began) / 1000);
  return { device: model.device, cold, rate, norm: length(first), vectors };
};
