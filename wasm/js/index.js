// kiln-embed: text embeddings in the page. The types and their docs are in index.d.ts.

import { aborted } from "./aborted.js";
import { LocalCalls, WorkerCalls } from "./calls.js";
import * as check from "./checks.js";
import { cosine } from "./cosine.js";
import { modelFiles } from "./files.js";
import { Helpers, threadsFor, workersFor } from "./helpers.js";
import { clearCache } from "./kept.js";
import { platform } from "./platform.js";
import { Index } from "./vectors.js";

export { Index, clearCache, cosine };

/** All bytes of a model. */
const parts = ({ kiln, files }) => (kiln ? [kiln] : files.map(([, bytes]) => bytes));

export class Embedder {
  #calls;
  #info;
  /** Loads the model once more, on the CPU. */
  #again;
  /** The load that is under way after a GPU was lost. */
  #moving;
  /** Other workers, where the CPU computes. */
  #helpers;
  /** What calls are told after the end. */
  #disposed;

  constructor(calls, info, again, helpers) {
    this.#calls = calls;
    this.#info = Object.freeze(info);
    this.#again = again;
    this.#helpers = helpers;
  }

  static async load(source, { device = "auto", cache = true, worker = platform.hasWorkers, workers = "auto", threads = "auto", weights = "kept", onProgress, signal } = {}) {
    check.loadOptions({ device, workers, threads, weights, onProgress, signal });
    const on = (device, options) => opened(source, { device, cache, worker, weights, threads: threadsFor(threads, workers), ...options });
    const { calls, info, bytes } = await on(device, { onProgress, signal });
    onProgress?.({ stage: "ready" });
    // What is not kept would be downloaded once more for each of them.
    const many = worker && (cache || workers !== "auto");
    const most = many ? workersFor(workers, bytes, info.threads) - 1 : 0;
    const helpers = info.device.startsWith("cpu") ? new Helpers(async () => (await on("cpu")).calls, most) : undefined;
    return new Embedder(calls, info, () => on("cpu"), helpers);
  }

  /** A call; where the GPU is lost in the midst of it the model goes on on the CPU, with a warning. */
  async #call(action, argument, options) {
    const calls = this.#calls;
    try {
      return await calls.call(action, argument, options);
    } catch (error) {
      if (error.name !== "DeviceLostError") throw error;
      // Several calls may find out, also when the model has moved already; the first of them moves it.
      if (this.#calls === calls) await (this.#moving ??= this.#move(error));
      return this.#calls.call(action, argument, options);
    }
  }

  async #move(lost) {
    console.warn(`kiln-embed: ${lost.message}; the model goes on on the CPU`);
    try {
      const { calls, info } = await this.#again();
      if (this.#disposed) {
        calls.end(this.#disposed);
        throw this.#disposed;
      }
      // Calls that still wait find out, and come again.
      this.#calls.end(lost);
      this.#calls = calls;
      this.#info = Object.freeze(info);
    } finally {
      this.#moving = undefined;
    }
  }

  get info() {
    return this.#info;
  }

  get device() {
    return this.#info.device;
  }

  get dimensions() {
    return this.#info.dimensions;
  }

  async embed(texts, { onProgress, signal, ...given } = {}) {
    const one = typeof texts === "string";
    const all = check.texts("texts", one ? [texts] : texts);
    check.listeners({ onProgress, signal });
    const options = check.embedOptions(given, this.dimensions);
    if (all.length === 0) return [];
    const watched = { onProgress, signal };
    const flat = this.#helpers?.areWorth(all)
      ? await this.#helpers.embed(all, options, (...call) => this.#call(...call), watched)
      : await this.#call("embed", { texts: all, options }, watched);
    const width = flat.length / all.length;
    const vectors = all.map((_, at) => flat.subarray(at * width, (at + 1) * width));
    return one ? vectors[0] : vectors;
  }

  async similarity(a, b, options = {}) {
    const vectors = await this.embed([a, b], { ...options, normalize: true });
    return cosine(vectors[0], vectors[1]);
  }

  async explain(text, { prompt } = {}) {
    return this.#call("explain", { text: check.text("the text", text), prompt: check.promptName(prompt) });
  }

  async lens(text, { prompt } = {}) {
    return this.#call("lens", { text: check.text("the text", text), prompt: check.promptName(prompt) });
  }

  async countTokens(text) {
    return this.#call("countTokens", { text: check.text("the text", text) });
  }

  dispose() {
    this.#disposed = new Error("the embedder is disposed");
    this.#calls.end(this.#disposed);
    this.#helpers?.end(this.#disposed);
  }
}

export class Reranker {
  #calls;
  #info;

  constructor(calls, info) {
    this.#calls = calls;
    this.#info = Object.freeze(info);
  }

  static async load(source, { cache = true, worker = platform.hasWorkers, threads = "auto", weights = "kept", onProgress, signal } = {}) {
    check.loadOptions({ device: "cpu", workers: 1, threads, weights, onProgress, signal });
    const options = { action: "openRanker", device: "cpu", cache, worker, weights, threads: threadsFor(threads, "auto"), onProgress, signal };
    const { calls, info } = await opened(source, options);
    onProgress?.({ stage: "ready" });
    return new Reranker(calls, info);
  }

  get info() {
    return this.#info;
  }

  get device() {
    return this.#info.device;
  }

  async scores(query, texts, { onProgress, signal } = {}) {
    const argument = { query: check.text("the query", query), texts: check.texts("texts", texts) };
    check.listeners({ onProgress, signal });
    return argument.texts.length === 0 ? new Float32Array(0) : this.#calls.call("rank", argument, { onProgress, signal });
  }

  async rank(query, texts, { top, ...options } = {}) {
    const most = check.optional(check.whole, "top", top, 1);
    const all = check.texts("texts", texts);
    const scores = await this.scores(query, all, options);
    const ranked = all.map((text, index) => ({ index, score: scores[index], text }));
    return ranked.sort((a, b) => b.score - a.score).slice(0, most);
  }

  dispose() {
    this.#calls.end(new Error("the reranker is disposed"));
  }
}

/** Where a model's calls go, what it is, and how many bytes it has. */
async function opened(source, { action = "open", device, cache, worker, weights, threads, onProgress, signal }) {
  const calls = worker ? new WorkerCalls() : new LocalCalls();
  // Reading a model does not stop in the midst of it; who reads it can be ended.
  const abort = () => calls.end(aborted());
  signal?.addEventListener("abort", abort, { once: true });
  try {
    let kept = false;
    let bytes = 0;
    const open = async (fresh) => {
      const files = await modelFiles(source, { cache, fresh, onProgress, onKept: () => (kept = true), signal });
      onProgress?.({ stage: "open" });
      bytes = parts(files).reduce((sum, part) => sum + part.byteLength, 0);
      // Bytes of the caller's own stay the caller's.
      const own = source instanceof ArrayBuffer || ArrayBuffer.isView(source);
      const transfer = own ? [] : [...new Set(parts(files).map((part) => part.buffer))];
      return calls.call(action, { ...files, device, threads, weights }, { signal, transfer });
    };
    let info;
    try {
      info = await open(false);
    } catch (error) {
      // What was kept may be damaged, or of another version than the rest; other failures have names of their own.
      if (!kept || error.name !== "Error") throw error;
      info = await open(true);
    }
    return { calls, info, bytes };
  } catch (error) {
    calls.end();
    throw error;
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}
