// Teaching a model where its texts are. Fetched when the first trainer is asked for, and its build of the core with it.

import { adapterFiles } from "./adapters.js";
import * as check from "./checks.js";
import { opened } from "./opened.js";
import { platform } from "./platform.js";
import { threadsFor } from "./helpers.js";

/** Steps between states that are kept. */
const STATE_EVERY = 10;

export class Trainer {
  #calls;
  #info;

  constructor(calls, info) {
    this.#calls = calls;
    this.#info = Object.freeze(info);
  }

  static async open({ source, cache, worker, weights, threads: usual }, { rank, alpha, targets, seed, threads = usual, onProgress, signal } = {}) {
    check.loadOptions({ device: "cpu", workers: 1, threads, weights, onProgress, signal });
    const settings = given({
      rank: check.optional(check.whole, "rank", rank, 1, 256),
      alpha: check.optional(check.positive, "alpha", alpha),
      targets: check.optional(check.texts, "targets", targets),
      seed: check.optional(check.whole, "seed", seed, 0, Number.MAX_SAFE_INTEGER),
    });
    const more = { settings, base: nameOf(source) };
    const { calls, info } = await opened(source, { action: "openTrainer", more, device: "cpu", cache, worker, weights, threads: threadsFor(threads, "auto"), onProgress, signal });
    onProgress?.({ stage: "ready" });
    return new Trainer(calls, info);
  }

  get device() {
    return this.#info.device;
  }

  /** Goes on from adapters that were trained before. */
  async startFrom(adapter) {
    await this.#calls.call("teachTake", { what: "adapters", files: await adapterFiles(adapter) });
  }

  async fit({ pairs, negatives = [], others = [], steps, batchSize, learningRate, temperature, hardNegatives, holdBack, checkEvery, patience, budget, checkpoint, onProgress, signal } = {}) {
    const lessons = lessonsOf(pairs, negatives);
    const plan = given({
      steps: check.optional(check.whole, "steps", steps, 1, 100_000),
      batchSize: check.optional(check.whole, "batchSize", batchSize, 2, 100_000),
      learningRate: check.optional(check.positive, "learningRate", learningRate),
      temperature: check.optional(check.positive, "temperature", temperature),
      hardNegatives: check.optional(check.whole, "hardNegatives", hardNegatives, 0, 64),
      holdBack: check.optional(check.share, "holdBack", holdBack),
      checkEvery: check.optional(check.whole, "checkEvery", checkEvery, 1),
      patience: check.optional(check.whole, "patience", patience, 1),
    });
    // As long as there is time, rather than so many steps.
    if (budget !== undefined && steps === undefined) plan.steps = 1000;
    const how = this.#how({ budget, checkpoint, onProgress, signal });
    await this.#calls.call("teachBegin", { lessons, others: check.texts("others", others), plan }, { signal });
    return this.#teach(how);
  }

  /** Goes on with a run that was kept by `checkpoint`; undefined where there is none of that name. */
  async resume(checkpoint, { budget, onProgress, signal } = {}) {
    const how = this.#how({ budget, checkpoint: check.text("the name", checkpoint), onProgress, signal });
    const state = await platform.states.load(checkpoint);
    if (state === undefined) return undefined;
    await this.restore(state);
    return this.#teach(how);
  }

  #how({ budget, checkpoint, onProgress, signal }) {
    check.listeners({ onProgress, signal });
    budget = check.optional(check.positive, "budget", budget);
    return { budget, checkpoint: check.optional(check.text, "checkpoint", checkpoint), onProgress, signal };
  }

  async #teach({ budget, checkpoint, onProgress, signal }) {
    let keeping = Promise.resolve();
    const progress = ({ state, ...rest }) => {
      // What cannot be kept, for lack of room say, is done without, with a warning.
      if (state) keeping = keeping.then(() => platform.states.save(checkpoint, { files: state })).catch((error) => console.warn(`kiln-embed: ${error.message}; the run goes on, and is not kept`));
      onProgress?.(rest);
    };
    const argument = { budget, ...(checkpoint !== undefined && { stateEvery: STATE_EVERY }) };
    // Also where the run was stopped: who resumes at once finds the state.
    const run = this.#calls.call("teach", argument, { onProgress: progress, signal }).finally(() => keeping);
    const { files, ...outcome } = await run;
    if (checkpoint !== undefined) await platform.states.remove(checkpoint);
    return { ...outcome, adapter: files ? { files } : null };
  }

  /** All that is needed to go on with a run that was stopped. */
  async state() {
    return { files: await this.#calls.call("teachFiles", { what: "state" }) };
  }

  async restore(state) {
    if (!Array.isArray(state?.files)) throw new TypeError(`the state is ${check.shown(state)}, not one that trainer.state() gave`);
    await this.#calls.call("teachTake", { what: "restore", files: state.files });
  }

  dispose() {
    this.#calls.end(new Error("the trainer is disposed"));
  }
}

/** What was given, less what was not. */
const given = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined));

/** What adapters call the model that they are of. */
function nameOf(source) {
  if (typeof source !== "string" && !(source instanceof URL)) return source?.name ?? "model";
  const { pathname } = platform.address(source);
  return decodeURIComponent(pathname.split("/").filter(Boolean).at(-1) ?? "model").replace(/\.kiln$/, "");
}

/** A query and a text of it: `{ query, text }` or `[query, text]`. */
function pairOf(name, value) {
  const [query, text] = Array.isArray(value) ? value : [value?.query, value?.text];
  return { query: check.text(`the query of ${name}`, query), text: check.text(`the text of ${name}`, text) };
}

/** Lessons as the core takes them: each pair, with the negatives of its query. */
function lessonsOf(pairs, negatives) {
  if (typeof pairs?.[Symbol.iterator] !== "function" || typeof pairs === "string") throw new TypeError(`pairs are ${check.shown(pairs)}, not a list of { query, text }`);
  if (typeof negatives?.[Symbol.iterator] !== "function" || typeof negatives === "string") throw new TypeError(`negatives are ${check.shown(negatives)}, not a list of { query, text }`);
  const wrong = new Map();
  Array.from(negatives, (value, at) => {
    const { query, text } = pairOf(`negatives[${at}]`, value);
    wrong.set(query, [...(wrong.get(query) ?? []), text]);
  });
  const lessons = Array.from(pairs, (value, at) => {
    const { query, text } = pairOf(`pairs[${at}]`, value);
    return { query, positives: [text], negatives: wrong.get(query) ?? [] };
  });
  const asked = new Set(lessons.map(({ query }) => query));
  const alone = [...wrong.keys()].find((query) => !asked.has(query));
  if (alone !== undefined) throw new RangeError(`there are negatives for ${check.shown(alone)} and no pair; what is wrong is learned beside what is right`);
  return lessons;
}
