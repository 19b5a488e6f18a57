// kiln-embed: text embeddings in the page. The types and their docs are in index.d.ts.

import { LocalCalls, WorkerCalls } from "./calls.js";
import { cosine } from "./cosine.js";
import { clearCache, modelFiles } from "./files.js";
import { Helpers, threadsFor, workersFor } from "./helpers.js";
import * as store from "./store.js";

export { clearCache, cosine };

const DEVICES = ["auto", "cpu", "webgpu"];

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

  static async load(source, { device = "auto", cache = true, worker = true, workers = "auto", threads = "auto", weights = "kept", onProgress, signal } = {}) {
    if (!DEVICES.includes(device)) throw new RangeError(`device ${JSON.stringify(device)} is unknown; known are ${DEVICES.join(", ")}`);
    for (const [name, count] of Object.entries({ workers, threads })) {
      if (count !== "auto" && !(Number.isInteger(count) && count > 0)) throw new RangeError(`${name} is ${JSON.stringify(count)}, neither "auto" nor a whole number above 0`);
    }
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

  async embed(texts, { onProgress, signal, ...options } = {}) {
    const one = typeof texts === "string";
    const all = one ? [texts] : Array.from(texts, String);
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

  explain(text, { prompt } = {}) {
    return this.#call("explain", { text: String(text), prompt });
  }

  lens(text, { prompt } = {}) {
    return this.#call("lens", { text: String(text), prompt });
  }

  countTokens(text) {
    return this.#call("countTokens", { text: String(text) });
  }

  dispose() {
    this.#disposed = new Error("the embedder is disposed");
    this.#calls.end(this.#disposed);
    this.#helpers?.end(this.#disposed);
  }
}

/** Where a model's calls go, what it is, and how many bytes it has. */
async function opened(source, { device, cache, worker, weights, threads, onProgress, signal }) {
  const calls = worker ? new WorkerCalls() : new LocalCalls();
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
      return calls.call("open", { ...files, device, threads, weights: String(weights) }, { signal, transfer });
    };
    let info;
    try {
      info = await open(false);
    } catch (error) {
      // What was kept may be damaged, or of another version than the rest.
      if (!kept || ["AbortError", "WorkerError"].includes(error.name)) throw error;
      info = await open(true);
    }
    return { calls, info, bytes };
  } catch (error) {
    calls.end();
    throw error;
  }
}

export class Index {
  #calls;
  #ids;
  #rows;
  #data;
  #settings;

  constructor(calls, settings, entries) {
    this.#calls = calls;
    this.#settings = settings;
    this.#ids = entries.map(([id]) => id);
    this.#rows = new Map(entries.map(([id], row) => [id, row]));
    this.#data = new Map(entries.filter(([, data]) => data !== undefined));
  }

  static async create({ dimensions, precision = "int8", worker = true }) {
    const calls = worker ? new WorkerCalls() : new LocalCalls();
    try {
      await calls.call("indexNew", { dimensions, precision });
    } catch (error) {
      calls.end();
      throw error;
    }
    return new Index(calls, { dimensions, precision }, []);
  }

  static async import(saved, { worker = true } = {}) {
    if (saved?.version !== 1 || !Array.isArray(saved.entries)) throw new Error("this is no saved index of a version that is known here");
    const calls = worker ? new WorkerCalls() : new LocalCalls();
    try {
      const rows = await calls.call("indexRead", { bytes: saved.bytes });
      if (rows !== saved.entries.length) throw new Error("the saved index has other rows than names");
    } catch (error) {
      calls.end();
      throw error;
    }
    return new Index(calls, saved.settings, saved.entries);
  }

  static async load(name, options) {
    const saved = await store.load(name);
    return saved === undefined ? undefined : Index.import(saved, options);
  }

  static delete(name) {
    return store.remove(name);
  }

  static names() {
    return store.names();
  }

  get size() {
    return this.#ids.length;
  }

  get dimensions() {
    return this.#settings.dimensions;
  }

  get precision() {
    return this.#settings.precision;
  }

  has(id) {
    return this.#rows.has(id);
  }

  get(id) {
    return this.#data.get(id);
  }

  entries() {
    return this.#ids.map((id) => [id, this.#data.get(id)]);
  }

  async vectors(ids) {
    const rows = Array.from(ids, (id) => {
      const row = this.#rows.get(id);
      if (row === undefined) throw new RangeError(`the index has no ${JSON.stringify(id)}`);
      return row;
    });
    const { dimensions } = this.#settings;
    const flat = await this.#calls.call("indexVectors", { rows });
    return rows.map((_, at) => flat.subarray(at * dimensions, (at + 1) * dimensions));
  }

  async add(entries) {
    const { dimensions } = this.#settings;
    const seen = new Set();
    for (const { id, vector } of entries) {
      if (vector.length !== dimensions) throw new RangeError(`the vector of ${JSON.stringify(id)} has ${vector.length} dimensions, the index has ${dimensions}`);
      if (!Array.prototype.every.call(vector, Number.isFinite)) throw new RangeError(`the vector of ${JSON.stringify(id)} has numbers that are not finite`);
      if (seen.has(id)) throw new RangeError(`${JSON.stringify(id)} is added twice`);
      seen.add(id);
    }
    await this.remove([...seen].filter((id) => this.#rows.has(id)));
    const vectors = new Float32Array(entries.length * dimensions);
    entries.forEach(({ vector }, at) => vectors.set(vector, at * dimensions));
    // Names first: calls are done in their order, so a search that follows finds them.
    for (const { id, data } of entries) {
      this.#rows.set(id, this.#ids.length);
      this.#ids.push(id);
      if (data !== undefined) this.#data.set(id, data);
    }
    await this.#calls.call("indexAdd", { vectors, dimensions }, { transfer: [vectors.buffer] });
  }

  async remove(ids) {
    const rows = [];
    for (const id of ids) {
      const row = this.#rows.get(id);
      if (row === undefined) continue;
      // As in the core: the last row takes the place.
      rows.push(row);
      const last = this.#ids.pop();
      if (last !== id) {
        this.#ids[row] = last;
        this.#rows.set(last, row);
      }
      this.#rows.delete(id);
      this.#data.delete(id);
    }
    if (rows.length > 0) await this.#calls.call("indexRemove", { rows });
    return rows.length;
  }

  async search(query, { k = 10, rescore = 4, signal } = {}) {
    const names = this.#ids.slice();
    const found = await this.#calls.call("indexSearch", { query: Float32Array.from(query), k, rescore }, { signal });
    const hits = [];
    for (let at = 0; at < found.length; at += 2) {
      const id = names[found[at]];
      hits.push({ id, score: found[at + 1], data: this.#data.get(id) });
    }
    return hits;
  }

  async export() {
    const entries = this.entries();
    const bytes = await this.#calls.call("indexBytes");
    return { version: 1, settings: { ...this.#settings }, entries, bytes };
  }

  async save(name) {
    await store.save(name, await this.export());
  }

  dispose() {
    this.#calls.end(new Error("the index is disposed"));
  }
}
