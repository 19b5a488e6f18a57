// The compiled core, and a model in it. Runs in the worker, or in the page's thread where asked.

import { aborted } from "./aborted.js";
import { cosine } from "./cosine.js";
import { workerFromElsewhere } from "./elsewhere.js";
import { platform } from "./platform.js";

/** A module with one instruction of relaxed SIMD: whether it is valid says which build to take. */
const RELAXED = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0, 65, 1, 253, 15, 65, 2, 253, 15,
  253, 128, 2, 11,
]);

const THREAD = { type: "module", name: "kiln-embed-thread" };

const startThread = () =>
  platform.startWorker?.("thread") ?? workerFromElsewhere("thread.js", THREAD) ?? new Worker(new URL("./thread.js", import.meta.url), { type: "module", name: "kiln-embed-thread" });

/**
 * Milliseconds within which a thread begins. Chromium has been seen to lose a worker's worker without a word, where another
 * service worker took the page over just then.
 */
const BEGINS_WITHIN = 15_000;

/**
 * Makes the memory of a build's core that of `count` more workers, and has them compute; `js` is where an add-on's build is. This
 * thread waits for them, and so cannot hear of one that dies: `watch` is given a port that tells of it.
 */
async function startThreads(core, js, count, watch) {
  const workers = Array.from({ length: count }, startThread);
  let timer;
  const late = new Promise((resolve, reject) => {
    timer = setTimeout(reject, BEGINS_WITHIN, new Error(`a thread has not begun within ${BEGINS_WITHIN / 1000} s`));
  });
  try {
    const shared = core.shared();
    const begun = workers.map(
      (worker) =>
        new Promise((resolve, reject) => {
          worker.onmessage = ({ data: failure }) => (failure === undefined ? resolve() : reject(new Error(failure)));
          worker.onerror = (event) => reject(new Error(event.message || "a thread's files could not be loaded"));
          const { port1, port2 } = new MessageChannel();
          watch?.(port1);
          worker.postMessage({ js, shared, port: port2 }, [port2]);
        }),
    );
    await Promise.race([Promise.all(begun), late]);
    core.startThreads(count);
    // They wait for work as long as this thread is there.
    for (const worker of workers) platform.keepAlive(worker, false);
  } catch (error) {
    for (const worker of workers) worker.terminate();
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

const BUILDS = {
  threads: () => import("./threads/kiln_wasm.js"),
  relaxed: () => import("./relaxed/kiln_wasm.js"),
  simd: () => import("./simd/kiln_wasm.js"),
};

/**
 * Builds by name, each compiled once: `{ core, threads }`, with how many threads the one computes that was started with some.
 * `files` are the addresses of an add-on's.
 */
const compiled = new Map();
function build(name, { threads, watch, files } = {}) {
  if (!compiled.has(name)) {
    compiled.set(name, begun(name, threads, watch, files));
  }
  return compiled.get(name);
}

async function begun(name, threads, watch, files) {
  const hasThreads = name.endsWith("threads");
  let isShared = false;
  try {
    // First, as this runtime may have none of it.
    const module_or_path = await platform.wasm(name, files?.wasm);
    const core = await (files ? platform.importModule(files.js) : BUILDS[name]());
    await core.default({ module_or_path });
    isShared = hasThreads;
    if (hasThreads) await startThreads(core, files?.js, threads, watch);
    return { core, threads: hasThreads ? threads : 1 };
  } catch (error) {
    // What could not be fetched may be there the next time. Workers that were ended may have left a lock behind in a memory.
    if (!isShared) compiled.delete(name);
    // Who serves the package may have left these out.
    if (!hasThreads) throw error;
    throw Object.assign(new Error(`threads cannot be had: ${error.message}`, { cause: error }), { name: "ThreadsError" });
  }
}

/** The builds that can be run here, the fastest first. */
function builds(threads) {
  if (!WebAssembly.validate(RELAXED)) return ["simd"];
  return threads > 1 && platform.canShare() ? ["threads", "relaxed", "simd"] : ["relaxed", "simd"];
}

/** The fastest build for one thread. */
async function core() {
  return (await build(builds(1)[0])).core;
}

const NAMES = { simd: "SIMD", relaxed: "relaxed SIMD", threads: "relaxed SIMD", train: "SIMD", "train-threads": "relaxed SIMD" };

/**
 * What `open` gives with the first of some builds: one that does not compile here, or fails the model's own test, is left for
 * the next one, with a warning. It is given the core, where it computes, for people, and with how many threads. `addOn` has the
 * files of an add-on's builds.
 */
async function firstThatWorks(names, threads, watch, warn, open, addOn) {
  for (const [at, name] of names.entries()) {
    try {
      const { core, threads: used } = await build(name, { threads, watch, files: addOn?.[name] });
      return await open(core, `cpu (wasm, ${NAMES[name]}${used > 1 ? `, ${used} threads` : ""})`, used);
    } catch (error) {
      const ofBuild = error instanceof WebAssembly.CompileError || error.name === "ThreadsError" || String(error).includes("fails the test");
      if (!ofBuild || at + 1 === names.length) throw error;
      warn(`kiln-embed: ${error.message}; the ${names[at + 1]} build is used instead of ${name}`);
    }
  }
}

/** Lets waiting messages be handled; unlike setTimeout it is not slowed down when nested. */
function pause() {
  if (typeof MessageChannel === "undefined") return new Promise((resolve) => setTimeout(resolve));
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(0);
  });
}

/** Texts whose time decides between devices: two batches' worth of ordinary sentences. */
const PROBE = Array.from({ length: 8 }, (_, at) => `${at}: a sentence of usual length, as people write them in mails, tickets and notes, again and again. `.repeat(3));

/** The least cosine between so many vectors and others, which stand one after another. */
function leastCosine(ours, others, count) {
  const width = ours.length / count;
  const row = (vectors, at) => vectors.subarray(at * width, (at + 1) * width);
  const cosines = Array.from({ length: count }, (_, at) => cosine(row(ours, at), row(others, at)));
  return ours.length === others.length ? Math.min(...cosines) : NaN;
}

/** A GPU's adapter; undefined where there is none. */
async function gpuAdapter() {
  // A browser may know WebGPU and still have no adapter, or refuse.
  return (await globalThis.navigator?.gpu?.requestAdapter({ powerPreference: "high-performance" }).catch(() => null)) ?? undefined;
}

const isSoftware = (adapter) => adapter.info?.isFallbackAdapter ?? adapter.isFallbackAdapter ?? false;

/** The device is to blame, and not the model's files. */
const deviceError = (message, cause) => Object.assign(new Error(message, { cause }), { name: "DeviceError" });

/** What can be done without the thread's GPU. */
const INSTEAD = 'reload the page to use it again, or use device: "cpu"';

/** Why this thread's GPU is of no more use, if so; the module that drives it lives as long as the thread. */
let gpuFailure;
/** Models on the GPU. */
const gpuSessions = new Set();
/** Settles when the GPU is lost. */
let gpuLoss = new Promise(() => {});
/** Milliseconds within which a loss is told of. */
const TOLD_WITHIN = 1000;

/** Waits until a loss of the GPU is known, if that is it: a core that waits for a lost GPU breaks off a little before. */
const toldOfLoss = () => Promise.race([gpuLoss, new Promise((resolve) => setTimeout(resolve, TOLD_WITHIN))]);

function gpuFailed(error) {
  gpuFailure ??= error;
  for (const session of gpuSessions) session.fail(error);
}

/** Opens with `open`, and hears when the GPU device that this takes is lost later. */
async function watchingDevice(open) {
  const { prototype } = globalThis.GPUAdapter;
  const original = prototype.requestDevice;
  prototype.requestDevice = async function (...options) {
    const device = await original.apply(this, options);
    gpuLoss = device.lost.then(({ reason, message }) => gpuFailed(Object.assign(new Error(`the GPU was lost (${message || reason})`), { name: "DeviceLostError" })));
    return device;
  };
  try {
    return await open();
  } finally {
    prototype.requestDevice = original;
  }
}

/** A loaded model. */
class Session {
  /** Why nothing can be computed any more, if so: the GPU is lost, or the core broke off. */
  #lost;
  /** Rejects the run that waits for the GPU. */
  #reject;
  /** The model without adapters, and with each. */
  #models;
  #device;

  constructor(core, model, device, threads = 1) {
    this.core = core;
    this.#models = new Map([[null, model]]);
    this.#device = { device, threads };
    this.use(null);
  }

  /** Adds an adapter's two files by a name; those of the same name are replaced, also where they compute. Gives what the model is then. */
  addAdapter(name, files) {
    const folder = folderOf(this.core, files);
    try {
      const adapted = this.#models.get(null).withAdapter(folder);
      const replaced = this.#models.get(name);
      this.#models.set(name, adapted);
      if (replaced !== undefined && replaced === this.model) this.use(name);
      replaced?.free();
      return this.info;
    } finally {
      folder.free();
    }
  }

  /** Takes the adapter of a name out; where it computes, the model goes on as it was. */
  removeAdapter(name) {
    const removed = this.#models.get(name);
    if (removed === this.model) this.use(null);
    this.#models.delete(name);
    removed?.free();
    return this.info;
  }

  /** Computes with the adapters of a name from now on, or, with null, with none. */
  use(name) {
    if (!this.#models.has(name)) throw new RangeError(`there is no adapter ${JSON.stringify(name)}`);
    this.model = this.#models.get(name);
    this.info = { ...JSON.parse(this.model.info()), ...this.#device };
    return this.info;
  }

  /**
   * Reads a model: `{ kiln: Uint8Array, weights }` or `{ files: [[path, Uint8Array], ..], weights }`. With the add-on for it `auto`
   * measures where there is a GPU, and falls back to the CPU, with a warning, where the GPU fails.
   */
  static async open({ addOn, ...files }, device, threads, watch, warn = console.warn) {
    const tries = addOn && (device === "webgpu" || (device === "auto" && platform.triesGpu));
    const adapter = tries ? await gpuAdapter() : undefined;
    if (device === "webgpu") {
      if (!adapter) throw deviceError("there is no WebGPU adapter here; use device: \"cpu\"");
      return Session.#onGpu(files, adapter, addOn);
    }
    const cpu = await Session.#onCpu(files, threads, watch, warn);
    if (!adapter || isSoftware(adapter)) return cpu;
    let gpu;
    try {
      gpu = await Session.#onGpu(files, adapter, addOn);
      const found = { cpu: await cpu.#probe(), gpu: await gpu.#probe() };
      // Also where a model carries no vectors of its own to check itself against.
      const alike = leastCosine(found.cpu.vectors, found.gpu.vectors, PROBE.length);
      if (!(alike > 0.95)) throw new Error(`the GPU gives other vectors than the CPU (cosine ${alike.toFixed(3)})`);
      const [taken, other] = found.gpu.time < found.cpu.time ? [gpu, cpu] : [cpu, gpu];
      other.free();
      return taken;
    } catch (error) {
      warn(`kiln-embed: ${error.message}; the CPU is used`);
      gpu?.free();
      return cpu;
    }
  }

  static #onCpu(files, threads, watch, warn) {
    const open = async (core, device, used) => new Session(core, await read(core, files, "cpu"), device, used);
    return firstThatWorks(builds(threads), threads, watch, warn, open);
  }

  static async #onGpu(files, adapter, addOn) {
    const { vendor, architecture, description } = adapter.info ?? {};
    const name = description || [vendor, architecture].filter(Boolean).join(" ") || "unnamed adapter";
    if (gpuFailure) throw deviceError(`${gpuFailure.message}; ${INSTEAD}`);
    try {
      const { core } = await build("webgpu", { files: addOn.webgpu });
      const session = new Session(core, await watchingDevice(() => read(core, files, "webgpu")), `webgpu (${name})`);
      gpuSessions.add(session);
      return session;
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError)) throw error;
      await toldOfLoss();
      if (gpuFailure) throw deviceError(`${gpuFailure.message}; ${INSTEAD}`, error);
      const limit = Math.floor(adapter.limits.maxStorageBufferBindingSize / 2 ** 20);
      const why = new Error(`the model cannot be run on ${name}, which takes tensors of ${limit} MB at most`, { cause: error });
      gpuFailed(why);
      throw deviceError(`${why.message}; use device: "cpu"`, error);
    }
  }

  /** Vectors of some texts, and the milliseconds that they take after a run for what only the first one does. */
  async #probe() {
    const run = () => this.embed(PROBE, {}, undefined, () => false);
    await run();
    const start = performance.now();
    const vectors = await run();
    return { vectors, time: performance.now() - start };
  }

  /** Vectors of texts, one after another. */
  async embed(texts, options, onProgress, isAborted) {
    const { prompt, promptText, dimensions, normalize, batchTokens } = options;
    const job = this.model.begin(texts, prompt, promptText, dimensions, normalize, batchTokens);
    try {
      const start = performance.now();
      for (let more = texts.length > 0; more; ) {
        more = await this.#unlessLost(() => job.step());
        onProgress?.({
          texts: job.texts,
          total: texts.length,
          tokens: job.tokens,
          textsPerSecond: job.texts / Math.max(1e-6, (performance.now() - start) / 1000),
        });
        if (more) await pause();
        if (isAborted()) throw aborted();
      }
    } catch (error) {
      // A step that waits for a lost GPU still holds the job, and so does one that broke off.
      if (error.name !== "DeviceLostError" && !(error instanceof WebAssembly.RuntimeError)) job.free();
      throw error;
    }
    return job.finish();
  }

  /** The GPU is lost: ends the run that waits for it, and all later ones. */
  fail(error) {
    this.#lost = error;
    this.#reject?.(error);
  }

  /** What a run gives, or that the device was lost in the midst of it: then it may never end by itself, or break off. */
  #unlessLost(run) {
    return new Promise((resolve, reject) => {
      if (this.#lost) return reject(this.#lost);
      this.#reject = reject;
      // What need not wait for a device is no promise.
      (async () => run())().then(resolve, async (error) => {
        if (error instanceof WebAssembly.RuntimeError) {
          if (gpuSessions.has(this)) await toldOfLoss();
          this.#lost ??= error;
        }
        reject(this.#lost ?? error);
      });
    });
  }

  async explain(text, prompt) {
    return JSON.parse(await this.#unlessLost(() => this.model.explain(text, prompt)));
  }

  async lens(text, prompt) {
    const lens = await this.#unlessLost(() => this.model.lens(text, prompt));
    try {
      return { ...JSON.parse(lens.summary()), attention: lens.attention(), states: lens.states() };
    } finally {
      lens.free();
    }
  }

  countTokens(text) {
    return this.model.countTokens(text);
  }

  free() {
    gpuSessions.delete(this);
    // A step that waits for a lost GPU still holds the model, and so does one that broke off.
    if (!this.#lost) for (const model of this.#models.values()) model.free();
  }
}

function read(core, { kiln, files, weights }, device) {
  return kiln ? core.Model.fromKiln(kiln, device, weights) : core.Model.fromFiles(folderOf(core, files), device, weights);
}

function folderOf(core, files) {
  const folder = new core.ModelFiles();
  for (const [path, bytes] of files) folder.add(path, bytes);
  return folder;
}

/** A cross-encoder, on the CPU. */
class Ranker {
  constructor(scorer, device, threads) {
    this.scorer = scorer;
    this.info = { ...JSON.parse(scorer.info()), device, threads };
  }

  static open({ kiln, files, weights }, threads, watch, warn = console.warn) {
    return firstThatWorks(builds(threads), threads, watch, warn, (core, device, used) => {
      const scorer = kiln ? core.PairScorer.fromKiln(kiln, weights) : core.PairScorer.fromFiles(folderOf(core, files), weights);
      return new Ranker(scorer, device, used);
    });
  }

  /** Scores of texts before the activation and behind it, in their order. */
  async scores(query, texts, onProgress, isAborted) {
    const logits = new Float32Array(texts.length);
    const start = performance.now();
    for (const [at, text] of texts.entries()) {
      logits[at] = await this.scorer.logit(query, text);
      const done = at + 1;
      onProgress?.({ texts: done, total: texts.length, textsPerSecond: done / Math.max(1e-6, (performance.now() - start) / 1000) });
      if (done < texts.length) await pause();
      if (isAborted()) throw aborted();
    }
    return { logits, scores: logits.map((logit) => this.scorer.activated(logit)) };
  }

  free() {
    this.scorer.free();
  }
}

/** Files of the core's as `[path, bytes]`. */
function filesOf(folder) {
  const files = folder.names().map((name) => [name, folder.bytes(name)]);
  folder.free();
  return files;
}

/** After how many steps a run within a time is held to what they take. */
const MEASURED = 3;
/** Steps at most of a run within a time. */
const MOST_STEPS = 1000;
/** As many as a run may have. */
const ALL_STEPS = 2 ** 31;
/** With fewer steps LoRA learns too little; where no time was given, this one in milliseconds is. */
const FEWEST_STEPS = 20;
const PATIENCE = 120_000;

/** Milliseconds between states of a run, at least. */
const STATE_PAUSE = 1000;

/** Adapters on a model that are taught, on the CPU. */
class Teaching {
  constructor(core, trainer, device, { base, settings }) {
    this.core = core;
    this.trainer = trainer;
    this.#device = device;
    this.base = base;
    this.mayChange = (settings.kind ?? "auto") === "auto";
  }

  #device;
  /** What is taught, as it was given. */
  #given;

  get info() {
    return { ...this.#device, kind: this.trainer.kind };
  }

  static open({ addOn, kiln, files, weights, ...given }, threads, watch, warn = console.warn) {
    const shares = threads > 1 && platform.canShare() && WebAssembly.validate(RELAXED);
    const names = shares ? ["train-threads", "train"] : ["train"];
    const open = async (core, device, used) => {
      const settings = JSON.stringify(given.settings);
      const trainer = await (kiln ? core.Trainer.fromKiln(kiln, weights, settings) : core.Trainer.fromFiles(folderOf(core, files), weights, settings));
      return new Teaching(core, trainer, { device, threads: used }, given);
    };
    return firstThatWorks(names, threads, watch, warn, open, addOn);
  }

  /** Begins to teach; without `steps` a run within a time has as many as fit into it. */
  begin(given) {
    this.#given = given;
    return this.#begin();
  }

  #begin() {
    const { lessons, others, plan, mine, within } = this.#given;
    const usual = within && this.trainer.kind === "lora" ? { steps: MOST_STEPS, ...plan } : plan;
    return this.trainer.begin(JSON.stringify(lessons), others, JSON.stringify(usual), mine && JSON.stringify(mine));
  }

  /** Where the kind was left open and LoRA's steps take too long here, an adapter of vectors is taught instead. */
  #isTooSlow(each, left, steps) {
    if (!this.mayChange || this.trainer.kind !== "lora") return false;
    return left === undefined ? each * steps > PATIENCE : each * FEWEST_STEPS > left;
  }

  /**
   * Teaches to the end, or as long as `budget` milliseconds allow, within which an adapter's texts have to be embedded.
   * Every `stateEvery` steps, but not more often than once a second, the state comes with the progress, to be kept. Gives
   * the outcome, and the adapters where they are kept.
   */
  async run({ budget, stateEvery }, onProgress, isAborted) {
    const start = performance.now();
    /** The step that the run begins with, and how long it took until then: texts are embedded, lessons held back asked. */
    let first;
    let ready = 0;
    let keptAt = -Infinity;
    // One that is gone on with was cut to what fitted into the time that it had; and within a time none is made longer for new words.
    const unbound = () => {
      if (budget !== undefined) this.trainer.setSteps(ALL_STEPS);
    };
    unbound();
    for (;;) {
      const point = JSON.parse(this.trainer.step());
      first ??= point.loss === null ? point.step : point.step - 1;
      const spent = performance.now() - start;
      if (budget !== undefined && spent >= budget && point.waiting > 0) {
        throw new RangeError(`the budget is used up before the first step, with ${point.waiting} texts of the lessons still to be embedded; give more, or call it again: none is embedded twice`);
      }
      const steps = point.step - first;
      if (steps === 0) ready = spent;
      const each = steps > 0 ? (spent - ready) / steps : undefined;
      const left = budget === undefined ? undefined : Math.max(0, budget - spent);
      if (steps === 1 && point.phase !== "done" && this.#isTooSlow(each, left, point.steps)) {
        this.trainer.useVectorAdapter();
        this.#begin();
        unbound();
        first = undefined;
        continue;
      }
      if (steps > 0) this.mayChange = false;
      let total = point.steps;
      if (budget !== undefined && each !== undefined) {
        total = Math.min(point.most, Math.max(point.step, first + Math.floor((budget - ready) / each)));
        // Also up again, where other work had the processor for a while.
        if (steps >= MEASURED && point.phase !== "done") this.trainer.setSteps(total);
      }
      // Within a time nothing is known of the number of steps before the first.
      const isKnown = budget === undefined || each !== undefined;
      const needed = each === undefined ? left : each * (total - point.step);
      const keeps = stateEvery !== undefined && point.loss !== null && point.step % stateEvery === 0 && point.phase !== "done" && spent - keptAt >= STATE_PAUSE;
      if (keeps) keptAt = spent;
      onProgress?.({
        kind: this.trainer.kind,
        step: point.step,
        newWords: point.newWords,
        ...(isKnown && { steps: total }),
        ...(point.loss !== null && { loss: point.loss }),
        ...(point.score && { score: point.score }),
        seconds: spent / 1000,
        ...(needed !== undefined && { secondsLeft: needed / 1000 }),
        ...(keeps && { state: filesOf(this.trainer.state()) }),
      });
      if (point.phase === "done") break;
      await pause();
      if (isAborted()) throw aborted();
    }
    const outcome = JSON.parse(this.trainer.finish());
    const files = outcome.kept ? filesOf(this.trainer.adapter(this.base)) : undefined;
    return { ...outcome, kind: this.trainer.kind, seconds: (performance.now() - start) / 1000, files };
  }

  files(what) {
    return filesOf(what === "state" ? this.trainer.state() : this.trainer.adapter(this.base));
  }

  /** Takes files for `restore` or `adapters`. */
  take(what, files) {
    const folder = folderOf(this.core, files);
    // What was learned is gone on with.
    this.mayChange = false;
    try {
      return this.trainer[what](folder);
    } finally {
      folder.free();
    }
  }

  free() {
    this.trainer.free();
  }
}

/** A model, an index, a cross-encoder and a trainer, and what can be asked of them. */
export class Engine {
  #session;
  #index;
  #ranker;
  #teaching;
  /** Why nothing can be asked any more: a module that has trapped may hold anything. */
  #broken;
  #watch;

  /** `watch` is given ports that tell of what dies while this thread waits for it. */
  constructor(watch) {
    this.#watch = watch;
  }

  /** Runs an action by name; gives its result and the buffers that may be handed over with it. */
  async run(action, argument, onProgress, isAborted) {
    if (this.#broken) throw this.#broken;
    if (isAborted()) throw aborted();
    try {
      return await this.#actions[action](argument ?? {}, onProgress, isAborted);
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError)) throw error;
      const why = `kiln-embed broke off (${error.message}): its memory is used up, or it has a bug, of which the console tells; load the model, or the index, again, where worker is false after a reload of the page`;
      throw (this.#broken = Object.assign(new Error(why, { cause: error }), { name: "WorkerError" }));
    }
  }

  free() {
    if (this.#broken) return;
    this.#session?.free();
    this.#index?.free();
    this.#ranker?.free();
    this.#teaching?.free();
    this.#session = this.#index = this.#ranker = this.#teaching = undefined;
  }

  #actions = {
    open: async ({ device, threads, ...files }) => {
      this.#session?.free();
      this.#session = undefined;
      this.#session = await Session.open(files, device, threads, this.#watch);
      return [this.#session.info];
    },
    openRanker: async ({ threads, ...files }) => {
      this.#ranker?.free();
      this.#ranker = undefined;
      this.#ranker = await Ranker.open(files, threads, this.#watch);
      return [this.#ranker.info];
    },
    addAdapter: ({ name, files }) => [this.#session.addAdapter(name, files)],
    removeAdapter: ({ name }) => [this.#session.removeAdapter(name)],
    setAdapter: ({ name }) => [this.#session.use(name)],
    openTrainer: async ({ threads, ...files }) => {
      this.#teaching?.free();
      this.#teaching = undefined;
      this.#teaching = await Teaching.open(files, threads, this.#watch);
      return [this.#teaching.info];
    },
    teachBegin: (argument) => [Array.from(this.#teaching.begin(argument))],
    teach: async (argument, onProgress, isAborted) => [await this.#teaching.run(argument, onProgress, isAborted)],
    teachFiles: ({ what }) => [this.#teaching.files(what)],
    teachTake: ({ what, files }) => {
      this.#teaching.take(what, files);
      return [this.#teaching.info];
    },
    rank: async ({ query, texts }, onProgress, isAborted) => {
      const both = await this.#ranker.scores(query, texts, onProgress, isAborted);
      return [both, [both.logits.buffer, both.scores.buffer]];
    },
    embed: async ({ texts, options }, onProgress, isAborted) => {
      const vectors = await this.#session.embed(texts, options, onProgress, isAborted);
      return [vectors, [vectors.buffer]];
    },
    explain: async ({ text, prompt }) => [await this.#session.explain(text, prompt)],
    lens: async ({ text, prompt }) => {
      const lens = await this.#session.lens(text, prompt);
      return [lens, [lens.attention.buffer, lens.states.buffer]];
    },
    countTokens: ({ text }) => [this.#session.countTokens(text)],
    indexNew: async ({ dimensions, precision }) => {
      this.#index = new (await core()).VectorIndex(dimensions, precision);
      return [undefined];
    },
    indexRead: async ({ bytes }) => {
      this.#index = (await core()).VectorIndex.fromBytes(bytes);
      const { length, dimensions, precision } = this.#index;
      return [{ length, dimensions, precision }];
    },
    indexAdapted: async ({ bytes, files, model }) => {
      const built = await core();
      this.#index = built.VectorIndex.fromBytes(bytes);
      const folder = folderOf(built, files);
      try {
        return [this.#index.adapt(folder, model)];
      } finally {
        folder.free();
      }
    },
    indexAdd: ({ vectors }) => {
      this.#index.add(vectors);
      return [this.#index.length];
    },
    indexRemove: ({ rows }) => {
      for (const row of rows) this.#index.swapRemove(row);
      return [this.#index.length];
    },
    indexVectors: ({ rows }) => {
      const vectors = this.#index.vectors(Uint32Array.from(rows));
      return [vectors, [vectors.buffer]];
    },
    indexSearch: ({ query, k, rescore }) => [this.#index.search(query, k, rescore)],
    indexBytes: () => {
      const bytes = this.#index.toBytes();
      return [bytes, [bytes.buffer]];
    },
  };
}
