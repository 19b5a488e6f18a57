// Teaching a model where its texts are. Fetched when the first trainer is asked for, and the add-on's build of the core with it.

import { adapterFiles } from "./adapters.js";
import { addOn, needed } from "./addons.js";
import * as check from "./checks.js";
import { cosine } from "./cosine.js";
import { opened } from "./opened.js";
import { platform } from "./platform.js";
import { threadsFor } from "./helpers.js";
import { Index, textOf } from "./vectors.js";

/** Steps between states that are kept. */
const STATE_EVERY = 10;
/** Texts that are looked at for each query where negatives are mined. */
const NEAREST = 50;
const KINDS = ["auto", "lora", "adapter"];

export class Trainer {
  #calls;
  #info;
  /** What is asked of the embedder that it was made by, and whether downloads are kept, as its were. */
  #asked;
  /** The last of what was asked for: one after another, since a run is more than one call. */
  #last = Promise.resolve();

  constructor(calls, info, asked) {
    this.#calls = calls;
    this.#info = info;
    this.#asked = asked;
  }

  static async open({ source, cache, worker, weights, threads: usual, asked }, { training, kind, rank, alpha, targets, seed, threads = usual, onProgress, signal } = {}) {
    const builds = addOn("training", training);
    needed("training", builds, "a trainer", "model.trainer({ training })");
    check.loadOptions({ device: "cpu", workers: 1, threads, weights, onProgress, signal });
    const settings = given({
      kind: check.optional(check.oneOf, "kind", kind, KINDS),
      rank: check.optional(check.whole, "rank", rank, 1, 256),
      alpha: check.optional(check.positive, "alpha", alpha),
      targets: check.optional(check.texts, "targets", targets),
      seed: check.optional(check.whole, "seed", seed, 0, Number.MAX_SAFE_INTEGER),
    });
    const more = { settings, base: nameOf(source), addOn: builds };
    const { calls, info } = await opened(source, { action: "openTrainer", more, device: "cpu", cache, worker, weights, threads: threadsFor(threads, "auto"), onProgress, signal });
    onProgress?.({ stage: "ready" });
    return new Trainer(calls, info, { ...asked, cache });
  }

  get kind() {
    return this.#info.kind;
  }

  get device() {
    return this.#info.device;
  }

  /** Begins once all that was asked for before is over. */
  #turn(begin) {
    const turn = this.#last.then(begin);
    this.#last = turn.catch(() => {});
    return turn;
  }

  /** Goes on from adapters that were trained before. */
  async startFrom(adapter) {
    await this.#turn(async () => this.#take("adapters", await adapterFiles(adapter, { cache: this.#asked.cache })));
  }

  async #take(what, files, signal) {
    this.#info = await this.#calls.call("teachTake", { what, files }, { signal });
  }

  async fit({ pairs, negatives = [], others = [], mine, steps, batchSize, learningRate, temperature, hardNegatives, holdBack, checkEvery, patience, budget, checkpoint, onProgress, signal } = {}) {
    const lessons = lessonsOf(pairs, negatives);
    const mining = check.optional(miningOf, "mine", mine);
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
    const how = this.#how({ budget, checkpoint, onProgress, signal });
    others = check.texts("others", others);
    // As long as there is time, rather than so many steps.
    const within = how.budget !== undefined && plan.steps === undefined;
    return this.#turn(async () => {
      const start = performance.now();
      if (mining) await this.#search(lessons, mining, signal);
      const [, , mined] = await this.#calls.call("teachBegin", { lessons, others, plan, mine: mining?.rule, within }, { signal });
      // That of an earlier run would be gone on with where this one is stopped before its first.
      await how.keeper?.forget();
      // What was searched for is paid from the budget, too.
      const budget = how.budget && Math.max(1, how.budget - (performance.now() - start));
      return { ...(await this.#teach({ ...how, budget })), mined };
    });
  }

  /** Finds for each lesson the texts of an index that are nearest to its query, and how near its own text is. */
  async #search(lessons, { index, text, nearest }, signal) {
    const own = this.#asked.fingerprint();
    if (index.model !== undefined && own && index.model !== own) {
      throw new Error("the index has vectors of another model, or of other adapters, than compute now; mine from one that the embedder's own were added to");
    }
    const queries = await this.#asked.embed(lessons.map(({ query }) => query), "query", { signal });
    const answers = await this.#asked.embed(lessons.map(({ positives }) => positives[0]), "document", { signal });
    for (const [at, lesson] of lessons.entries()) {
      const hits = await index.search(queries[at], { k: nearest, signal });
      const texts = hits.map((hit) => [wellFormed(`the text of ${check.shown(hit.id)}`, text(hit)), hit.score]);
      lesson.found = { positiveScores: [cosine(queries[at], answers[at])], texts };
    }
  }

  /** Goes on with a run: by the name of its `checkpoint`, undefined where there is none, or from its `state`. */
  async resume(from, { budget, onProgress, signal } = {}) {
    const name = typeof from === "string" ? from : undefined;
    const how = this.#how({ budget, checkpoint: name, onProgress, signal });
    return this.#turn(async () => {
      const state = name === undefined ? from : await platform.states.load(name);
      if (name !== undefined && state === undefined) return undefined;
      if (!Array.isArray(state?.files)) throw new TypeError(`the state is ${check.shown(state)}, neither one that trainer.state() gave nor the name of a checkpoint`);
      await this.#take("restore", state.files, signal);
      return this.#teach(how);
    });
  }

  #how({ budget, checkpoint, onProgress, signal }) {
    check.listeners({ onProgress, signal });
    budget = check.optional(check.positive, "budget", budget);
    checkpoint = check.optional(check.text, "checkpoint", checkpoint);
    return { budget, keeper: checkpoint === undefined ? undefined : new Keeper(checkpoint), onProgress, signal };
  }

  async #teach({ budget, keeper, onProgress, signal }) {
    const progress = ({ state, ...rest }) => {
      if (state) keeper?.keep(state);
      onProgress?.(rest);
    };
    const argument = { budget, ...(keeper && { stateEvery: STATE_EVERY }) };
    // Also where the run was stopped: who resumes at once finds the state.
    const run = this.#calls.call("teach", argument, { onProgress: progress, signal }).finally(() => keeper?.kept);
    const { files, ...outcome } = await run;
    this.#info = { ...this.#info, kind: outcome.kind };
    await keeper?.forget();
    return { ...outcome, adapter: files ? { files } : null };
  }

  /** All that is needed to go on with a run that was stopped. */
  async state() {
    return this.#turn(async () => ({ files: await this.#calls.call("teachFiles", { what: "state" }) }));
  }

  dispose() {
    this.#calls.end(new Error("the trainer is disposed"));
  }
}

/** Keeps a run by a name; what cannot be kept, for lack of room say, is done without, with a warning. */
class Keeper {
  #name;
  /** The last state that came while another was being kept. */
  #next;
  /** Settled when none waits any more. */
  kept;

  constructor(name) {
    this.#name = name;
  }

  keep(state) {
    this.#next = state;
    this.kept ??= this.#keepAll();
  }

  async #keepAll() {
    while (this.#next) {
      const files = this.#next;
      this.#next = undefined;
      await this.#tried("the run goes on, and is not kept", () => platform.states.save(this.#name, { files }));
    }
    this.kept = undefined;
  }

  async forget() {
    await this.#tried("what was kept of a run stays", () => platform.states.remove(this.#name));
  }

  async #tried(otherwise, run) {
    try {
      await run();
    } catch (error) {
      console.warn(`kiln-embed: ${error.message}; ${otherwise}`);
    }
  }
}

/** What was given, less what was not. */
const given = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined));

/** What adapters call the model that they are of. */
function nameOf(source) {
  if (typeof source !== "string" && !(source instanceof URL)) return source?.name ?? "model";
  const { pathname } = platform.address(source);
  const last = pathname.split("/").filter(Boolean).at(-1) ?? "model";
  let name = last;
  try {
    name = decodeURIComponent(last);
  } catch {
    // A name with a bare % is taken as it is.
  }
  return name.replace(/\.kiln$/, "");
}

/** A text as the core takes it: halves of characters become U+FFFD, as where texts are embedded. */
const wellFormed = (name, value) => check.text(name, value).toWellFormed();

/** Where negatives are mined, and by which rule: an index, or `{ index, text, perQuery, percentOfPositive, minRank, nearest }`. */
function miningOf(name, value) {
  const { index, text = textOf, nearest = NEAREST, perQuery, percentOfPositive, minRank } = value instanceof Index ? { index: value } : value;
  if (!(index instanceof Index)) throw new TypeError(`${name} is ${check.shown(value)}, neither an Index nor { index, .. }`);
  if (typeof text !== "function") throw new TypeError(`${name}.text is ${check.shown(text)}, not a function`);
  if (index.precision === "binary") throw new RangeError(`${name} has an index in binary, whose scores are no cosines; mine from one in f32, int8 or binary+int8`);
  const rule = given({
    perQuery: check.optional(check.whole, `${name}.perQuery`, perQuery, 1, 64),
    percentOfPositive: check.optional(check.positive, `${name}.percentOfPositive`, percentOfPositive),
    minRank: check.optional(check.whole, `${name}.minRank`, minRank, 1),
  });
  return { index, text, nearest: check.whole(`${name}.nearest`, nearest, 1), rule };
}

/** A query and a text of it: `{ query, text }` or `[query, text]`. */
function pairOf(name, value) {
  const [query, text] = Array.isArray(value) ? value : [value?.query, value?.text];
  return { query: wellFormed(`the query of ${name}`, query), text: wellFormed(`the text of ${name}`, text) };
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
