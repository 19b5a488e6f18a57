// Vectors by name, and search among them.

import { adapterFiles } from "./adapters.js";
import { LocalCalls, WorkerCalls } from "./calls.js";
import * as check from "./checks.js";
import { platform } from "./platform.js";

const PRECISIONS = ["f32", "int8", "binary", "binary+int8"];
/** As in the core. */
const MOST_DIMENSIONS = 2 ** 16;
/** Texts that are embedded again at a time: a query that comes meanwhile waits for no more of them. */
const AT_A_TIME = 32;

const { shown } = check;

export class Index {
  #calls;
  #settings;
  /** `{ id, data }` by row, as the core has the vectors. */
  #entries;
  /** Rows by id. */
  #rows;
  /** Whether it was said that weights differ. */
  #warned = false;

  constructor(calls, settings, entries) {
    this.#calls = calls;
    this.#settings = Object.freeze(settings);
    this.#entries = entries;
    this.#rows = new Map(entries.map(({ id }, row) => [id, row]));
  }

  static async create({ dimensions, precision = "int8", model, worker = platform.hasWorkers } = {}) {
    check.whole("dimensions", dimensions, 1, MOST_DIMENSIONS);
    check.oneOf("precision", precision, PRECISIONS);
    const made = madeBy(model);
    const calls = worker ? new WorkerCalls() : new LocalCalls();
    try {
      await calls.call("indexNew", { dimensions, precision });
    } catch (error) {
      calls.end();
      throw error;
    }
    return new Index(calls, { dimensions, precision, ...made }, []);
  }

  static async import(saved, { model, worker = platform.hasWorkers } = {}) {
    const asked = madeBy(model);
    const { entries, settings, bytes } = readable(saved);
    if (asked.model !== undefined && settings.model !== undefined && settings.model !== asked.model) {
      throw new Error(`the saved index has vectors of the model ${shown(settings.model)}, not of ${shown(asked.model)}; add its texts to a new one`);
    }
    const calls = worker ? new WorkerCalls() : new LocalCalls();
    try {
      const { length, dimensions, precision } = await calls.call("indexRead", { bytes });
      if (length !== entries.length) throw new Error(`the saved index names ${entries.length} entries and has ${length} vectors`);
      if (settings.dimensions !== dimensions || settings.precision !== precision) {
        throw new Error(`the saved index says ${shown(settings.dimensions)} dimensions in ${shown(settings.precision)}, and has ${dimensions} in ${precision}`);
      }
      const { model, weights, adapted } = settings;
      const kept = { dimensions, precision, ...(model && { model }), ...(typeof weights === "string" && { weights }), ...(adapted && { adapted: true }) };
      const index = new Index(calls, kept, entries);
      index.#compareWeights("the model that is given is", asked.weights);
      return index;
    } catch (error) {
      calls.end();
      throw error;
    }
  }

  static async load(name, options) {
    const saved = await platform.indexes.load(check.text("the name", name));
    return saved === undefined ? undefined : Index.import(saved, options);
  }

  static async delete(name) {
    await platform.indexes.remove(check.text("the name", name));
  }

  static names() {
    return platform.indexes.names();
  }

  get size() {
    return this.#entries.length;
  }

  get dimensions() {
    return this.#settings.dimensions;
  }

  get precision() {
    return this.#settings.precision;
  }

  get model() {
    return this.#settings.model;
  }

  has(id) {
    return this.#rows.has(id);
  }

  get(id) {
    return this.#entries[this.#rows.get(id)]?.data;
  }

  entries() {
    return this.#entries.map(({ id, data }) => [id, data]);
  }

  async vectors(ids) {
    const rows = check.ids(ids).map((id) => {
      const row = this.#rows.get(id);
      if (row === undefined) throw new RangeError(`the index has no ${shown(id)}`);
      return row;
    });
    const { dimensions } = this.#settings;
    const flat = await this.#calls.call("indexVectors", { rows });
    return rows.map((_, at) => flat.subarray(at * dimensions, (at + 1) * dimensions));
  }

  /** Vectors of two models, or of one with other adapters, are of two spaces; those of one by other weights are near each other. */
  #ofModel(what, given) {
    const made = madeBy(given);
    const own = this.#settings.model;
    if (made.model !== undefined && own !== undefined && made.model !== own) {
      throw new Error(`${what} of the model ${shown(made.model)}, and the index has vectors of ${shown(own)}; keep an index for each, or embed its texts again`);
    }
    this.#compareWeights(what, made.weights);
    return made;
  }

  /** Warns, once, where the index's vectors were computed by other weights of the same model. */
  #compareWeights(what, weights) {
    const own = this.#settings.weights;
    if (this.#warned || weights === undefined || own === undefined || computed(weights) === computed(own)) return;
    this.#warned = true;
    console.warn(`kiln-embed: ${what} computed by ${weights} weights, and the index's vectors were by ${own}: they are near each other, not the same; load the model with the same weights`);
  }

  async add(entries, { model } = {}) {
    const { dimensions } = this.#settings;
    const made = this.#ofModel("the entries are", model);
    if (typeof entries?.[Symbol.iterator] !== "function") throw new TypeError(`entries are ${shown(entries)}, not a list of { id, vector, data }`);
    const names = new Set();
    const added = Array.from(entries, (entry) => {
      const id = check.id(entry?.id);
      if (names.has(id)) throw new RangeError(`${shown(id)} is added twice`);
      names.add(id);
      return { id, data: entry.data, vector: check.vector(`the vector of ${shown(id)}`, entry.vector, dimensions) };
    });
    if (added.length === 0) return;
    if (this.#settings.model === undefined) this.#settings = Object.freeze({ ...this.#settings, ...made });
    const vectors = new Float32Array(added.length * dimensions);
    added.forEach(({ vector }, at) => vectors.set(vector, at * dimensions));
    // All at once: names change in the order of the calls, so a call that follows finds them, and no other comes
    // between what is replaced and what replaces it.
    const removed = this.#remove(names);
    for (const { id, data } of added) {
      this.#rows.set(id, this.#entries.length);
      this.#entries.push({ id, data });
    }
    await Promise.all([removed, this.#calls.call("indexAdd", { vectors }, { transfer: [vectors.buffer] })]);
  }

  async remove(ids) {
    const before = this.size;
    const removed = this.#remove(check.ids(ids));
    const count = before - this.size;
    await removed;
    return count;
  }

  /** Takes names out, and has the core take their rows out. */
  async #remove(ids) {
    const rows = [];
    for (const id of ids) {
      const row = this.#rows.get(id);
      if (row === undefined) continue;
      // As in the core: the last row takes the place.
      rows.push(row);
      const last = this.#entries.pop();
      if (row < this.#entries.length) {
        this.#entries[row] = last;
        this.#rows.set(last.id, row);
      }
      this.#rows.delete(id);
    }
    if (rows.length > 0) await this.#calls.call("indexRemove", { rows });
  }

  async search(query, { k = 10, rescore = 4, model, signal } = {}) {
    check.listeners({ signal });
    this.#ofModel("the query is", model);
    check.whole("k", k, 0);
    check.whole("rescore", rescore, 1);
    const numbers = check.vector("the query", query, this.dimensions);
    const entries = this.#entries.slice();
    const most = (count) => Math.min(count, entries.length);
    const found = await this.#calls.call("indexSearch", { query: numbers, k: most(k), rescore: most(rescore) }, { signal });
    const hits = [];
    for (let at = 0; at < found.length; at += 2) hits.push({ ...entries[found[at]], score: found[at + 1] });
    return hits;
  }

  async adapted(adapter, { worker = platform.hasWorkers } = {}) {
    if (this.#settings.adapted) throw new Error("the index's vectors are adapted already; take the index as the model alone made it");
    const files = await adapterFiles(adapter);
    const { settings, entries, bytes } = await this.export();
    const calls = worker ? new WorkerCalls() : new LocalCalls();
    try {
      // As the model's own with the adapter.
      const model = await calls.call("indexAdapted", { bytes, files, model: settings.model }, { transfer: [bytes.buffer] });
      return new Index(calls, { ...settings, ...(model && { model }), adapted: true }, entries.map(([id, data]) => ({ id, data })));
    } catch (error) {
      calls.end();
      throw error;
    }
  }

  async reembedded(embedder, { text = textOf, worker, onProgress, signal, ...options } = {}) {
    check.listeners({ onProgress, signal });
    if (typeof embedder?.embed !== "function") throw new TypeError(`${shown(embedder)} is no embedder; give the one whose vectors are wanted`);
    if (typeof text !== "function") throw new TypeError(`text is ${shown(text)}, not a function`);
    const entries = this.#entries.slice();
    const texts = entries.map((entry) => check.text(`the text of ${shown(entry.id)}`, text(entry)));
    const { info } = embedder;
    const { precision } = this.#settings;
    const index = await Index.create({ dimensions: options.dimensions ?? info.dimensions, precision, model: info, worker });
    const start = performance.now();
    try {
      for (let at = 0; at < texts.length; at += AT_A_TIME) {
        signal?.throwIfAborted();
        const vectors = await embedder.embed(texts.slice(at, at + AT_A_TIME), { ...options, signal });
        // Vectors of before and after are of two spaces.
        if (embedder.info.fingerprint !== info.fingerprint) throw new Error("the model was given another adapter while it embedded the index's texts; embed them again");
        await index.add(vectors.map((vector, i) => ({ ...entries[at + i], vector })));
        const done = at + vectors.length;
        onProgress?.({ texts: done, total: texts.length, textsPerSecond: done / Math.max(1e-6, (performance.now() - start) / 1000) });
      }
      return index;
    } catch (error) {
      index.dispose();
      throw error;
    }
  }

  async export() {
    const entries = this.entries();
    const bytes = await this.#calls.call("indexBytes");
    return { version: 1, settings: { ...this.#settings }, entries, bytes };
  }

  async save(name) {
    check.text("the name", name);
    await platform.indexes.save(name, await this.export());
  }

  dispose() {
    this.#calls.end(new Error("the index is disposed"));
  }
}

/** An entry's text, where it is told by what was given with it. */
export const textOf = ({ data }) => (typeof data === "string" ? data : data?.text);

/** Whose vectors are meant: `{ model, weights }` as far as they are known, from a fingerprint or an embedder's `info`. */
function madeBy(given) {
  if (typeof given !== "object" || given === null) {
    const model = check.optional(check.text, "model", given);
    return model === undefined ? {} : { model };
  }
  if (!("fingerprint" in given)) throw new TypeError("model is an object without a fingerprint; give the embedder's info, or its info.fingerprint");
  const model = check.optional(check.text, "model.fingerprint", given.fingerprint);
  const weights = check.optional(check.text, "model.weights", given.weights);
  return model === undefined ? {} : { model, ...(weights !== undefined && { weights }) };
}

/** What weights are multiplied as: those of 16 bits, and FP8, in f32. */
const computed = (weights) => (/^(b?f16$|fp8-)/.test(weights) ? "f32" : weights);

/** What a saved index has, as far as it can be told without the core. */
function readable(saved) {
  if (saved?.version !== 1 || !Array.isArray(saved.entries)) throw new Error("this is no saved index of a version that is known here");
  const { settings, bytes } = saved;
  if (typeof settings !== "object" || settings === null) throw new Error("the saved index has no settings");
  if (!(bytes instanceof Uint8Array)) throw new Error("the saved index has no bytes");
  const names = new Set();
  const entries = saved.entries.map((entry) => {
    if (!Array.isArray(entry)) throw new Error(`the saved index has ${shown(entry)} in place of an entry`);
    const id = check.id(entry[0]);
    if (names.has(id)) throw new Error(`the saved index names ${shown(id)} twice`);
    names.add(id);
    return { id, data: entry[1] };
  });
  return { settings, bytes, entries };
}
