// What users call, in pages (index.js), in Node and its like (node/index.js) and in workerd (workerd.js). The types and their
// docs are in index.d.ts.

import { adapterFiles } from "./adapters.js";
import { addOn, needed } from "./addons.js";
import * as check from "./checks.js";
import { cosine } from "./cosine.js";
import { Helpers, threadsFor, workersFor } from "./helpers.js";
import { clearCache } from "./kept.js";
import { ofVersion, opened } from "./opened.js";
import { platform } from "./platform.js";
import { Index } from "./vectors.js";

export { Index, clearCache, cosine };

/** Runs of trainers that were kept by name. */
export const checkpoints = {
  names: () => platform.states.names(),
  delete: async (name) => {
    await platform.states.remove(check.text("the name", name));
  },
};

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
  /** How a trainer of the same model is opened. */
  #forTraining;
  /** Files of adapters by name, and the name of the one that computes. */
  #adapters = new Map();
  #adapter = null;
  /** The last switch between adapters, and the runs of texts that are under way. */
  #switching = Promise.resolve();
  #running = new Set();

  constructor(calls, info, again, helpers, forTraining) {
    this.#calls = calls;
    this.#info = Object.freeze(info);
    this.#again = () => again().then((opened) => this.#adapted(opened));
    this.#helpers = helpers?.((calls) => this.#adapted({ calls }).then(({ calls }) => calls));
    this.#forTraining = forTraining;
  }

  static async load(source, { device = "auto", webgpu, cache = true, worker = platform.hasWorkers, workers = "auto", threads = "auto", weights = "kept", adapter, onProgress, signal } = {}) {
    check.loadOptions({ device, workers, threads, weights, onProgress, signal });
    const builds = addOn("webgpu", webgpu);
    if (device === "webgpu") needed("webgpu", builds, 'device "webgpu"', 'Embedder.load(source, { device: "webgpu", webgpu })');
    const files = adapter === undefined ? undefined : await adapterFiles(adapter, { cache, signal });
    const on = (device, options) => opened(source, { more: { addOn: builds }, device, cache, worker, weights, threads: threadsFor(threads, workers), ...options });
    const { calls, info, bytes, version } = await on(device, { onProgress, signal });
    const again = async () => ofVersion(version, await on("cpu"));
    // What is not kept would be downloaded once more for each of them.
    const many = worker && (cache || workers !== "auto");
    const most = many ? workersFor(workers, bytes, info.threads) - 1 : 0;
    const helpers = info.device.startsWith("cpu") ? (adapted) => new Helpers(async () => adapted((await again()).calls), most) : undefined;
    const forTraining = { source, cache, worker, weights, threads };
    const embedder = new Embedder(calls, info, again, helpers, forTraining);
    try {
      if (files) {
        await embedder.addAdapter("loaded", files);
        await embedder.setAdapter("loaded");
      }
    } catch (error) {
      embedder.dispose();
      throw error;
    }
    onProgress?.({ stage: "ready" });
    return embedder;
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
    } catch (error) {
      // It cannot go on, now or later.
      if (error.name === "VersionError") this.#calls.end(error);
      throw error;
    } finally {
      this.#moving = undefined;
    }
  }

  /** The same adapters in another worker. */
  async #adapted(opened) {
    const { calls } = opened;
    for (const [name, files] of this.#adapters) await calls.call("addAdapter", { name, files });
    const info = this.#adapter === null ? opened.info : await calls.call("setAdapter", { name: this.#adapter });
    return { ...opened, info };
  }

  async addAdapter(name, adapter) {
    check.text("the name", name);
    const files = await adapterFiles(adapter, { cache: this.#forTraining.cache });
    const add = async () => {
      const info = await this.#call("addAdapter", { name, files });
      this.#adapters.set(name, files);
      if (name === this.#adapter) this.#info = Object.freeze(info);
      await this.#helpers?.each((calls) => calls.call("addAdapter", { name, files }));
    };
    // The runs that are under way, or follow a switch that is, end by the one that it replaces.
    await (this.#adapters.has(name) ? this.#turn(add) : add());
  }

  async removeAdapter(name) {
    this.#known(name);
    await this.#turn(async () => {
      const info = await this.#call("removeAdapter", { name });
      this.#adapters.delete(name);
      if (name === this.#adapter) {
        this.#adapter = null;
        this.#info = Object.freeze(info);
      }
      await this.#helpers?.each((calls) => calls.call("removeAdapter", { name }));
    });
  }

  #known(name) {
    const known = [...this.#adapters.keys()];
    if (known.includes(name)) return;
    throw new RangeError(`there is no adapter ${check.shown(name)}; ${known.length > 0 ? `there are ${known.map(check.shown).join(", ")}` : "add one with addAdapter"}`);
  }

  /** A change to how texts are computed: after the runs that are under way, and before those that are asked for later. */
  async #turn(change) {
    const turned = Promise.allSettled([this.#switching, ...this.#running]).then(change);
    this.#switching = turned.catch(() => {});
    await turned;
  }

  async setAdapter(name) {
    if (name !== null) this.#known(name);
    await this.#turn(async () => {
      this.#info = Object.freeze(await this.#call("setAdapter", { name }));
      this.#adapter = name;
      await this.#helpers?.each((calls) => calls.call("setAdapter", { name }));
    });
  }

  get adapter() {
    return this.#adapter;
  }

  /** A run of texts, all of them by the same adapters: a switch waits for those before it, and those after it for the switch. */
  #computing(compute) {
    const run = this.#switching.then(compute);
    // Told at once, so that a switch that is asked for now waits for it too.
    const over = run.catch(() => {}).finally(() => this.#running.delete(over));
    this.#running.add(over);
    return run;
  }

  async trainer(options) {
    const { Trainer } = await import("./trainer.js");
    const asked = {
      fingerprint: () => this.#info.fingerprint,
      embed: (texts, prompt, options) => this.embed(texts, { ...options, promptText: this.#info.prompts[prompt] ?? "", normalize: true }),
    };
    return Trainer.open({ ...this.#forTraining, asked }, options);
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
    const compute = () =>
      this.#helpers?.areWorth(all)
        ? this.#helpers.embed(all, options, (...call) => this.#call(...call), watched)
        : this.#call("embed", { texts: all, options }, watched);
    const flat = await this.#computing(compute);
    const width = flat.length / all.length;
    const vectors = all.map((_, at) => flat.subarray(at * width, (at + 1) * width));
    return one ? vectors[0] : vectors;
  }

  async similarity(a, b, options = {}) {
    const vectors = await this.embed([a, b], { ...options, normalize: true });
    return cosine(vectors[0], vectors[1]);
  }

  async explain(text, { prompt } = {}) {
    const argument = { text: check.text("the text", text), prompt: check.promptName(prompt) };
    return this.#computing(() => this.#call("explain", argument));
  }

  async lens(text, { prompt } = {}) {
    const argument = { text: check.text("the text", text), prompt: check.promptName(prompt) };
    return this.#computing(() => this.#call("lens", argument));
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

  static async load(source, { cache = true, worker = platform.hasWorkers, threads = "auto", weights = "kept", adapter, onProgress, signal } = {}) {
    check.loadOptions({ device: "cpu", workers: 1, threads, weights, onProgress, signal });
    if (adapter !== undefined) throw new TypeError("a reranker takes no adapters; leave adapter out");
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

  async scores(query, texts, options) {
    return (await this.#both(query, texts, options)).scores;
  }

  async #both(query, texts, { onProgress, signal } = {}) {
    const argument = { query: check.text("the query", query), texts: check.texts("texts", texts) };
    check.listeners({ onProgress, signal });
    if (argument.texts.length === 0) return { logits: new Float32Array(0), scores: new Float32Array(0) };
    return this.#calls.call("rank", argument, { onProgress, signal });
  }

  async rank(query, texts, { top, ...options } = {}) {
    const most = check.optional(check.whole, "top", top, 1);
    const all = check.texts("texts", texts);
    const { logits, scores } = await this.#both(query, all, options);
    const ranked = all.map((text, index) => ({ index, score: scores[index], text }));
    // Large scores of a sigmoid are equal.
    return ranked.sort((a, b) => logits[b.index] - logits[a.index]).slice(0, most);
  }

  dispose() {
    this.#calls.end(new Error("the reranker is disposed"));
  }
}
