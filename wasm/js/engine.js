// The compiled core, and a model in it. Runs in the worker, or in the page's thread where asked.

/** A module with one instruction of relaxed SIMD: whether it is valid says which build to take. */
const RELAXED = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0, 65, 1, 253, 15, 65, 2, 253, 15,
  253, 128, 2, 11,
]);

const BUILDS = {
  relaxed: () => import("./relaxed/kiln_wasm.js"),
  simd: () => import("./simd/kiln_wasm.js"),
};

/** Compiles a build once. */
const compiled = new Map();
function build(name) {
  if (!compiled.has(name)) {
    compiled.set(
      name,
      BUILDS[name]().then(async (core) => {
        await core.default();
        return core;
      }),
    );
  }
  return compiled.get(name);
}

/** The builds that this browser can run, the fastest first. */
function builds() {
  return WebAssembly.validate(RELAXED) ? ["relaxed", "simd"] : ["simd"];
}

/** The fastest build. */
async function core() {
  return build(builds()[0]);
}

/** An AbortError, as fetch throws it. */
export function aborted() {
  return new DOMException("the run was aborted", "AbortError");
}

/** Lets waiting messages be handled; unlike setTimeout it is not slowed down when nested. */
function pause() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(0);
  });
}

/** A loaded model. */
class Session {
  constructor(model, device) {
    this.model = model;
    this.info = { ...JSON.parse(model.info()), device };
  }

  /**
   * Reads a model: `{ kiln: Uint8Array }` or `{ files: [[path, Uint8Array], ..] }`. A build that does not
   * compile here, or fails the model's own test, is left for the next one, with a warning.
   */
  static async open(files, warn = console.warn) {
    const names = builds();
    for (const [at, name] of names.entries()) {
      try {
        const core = await build(name);
        return new Session(read(core, files), `cpu (wasm, ${name === "relaxed" ? "relaxed SIMD" : "SIMD"})`);
      } catch (error) {
        const ofBuild = error instanceof WebAssembly.CompileError || String(error).includes("fails the test");
        if (!ofBuild || at + 1 === names.length) throw error;
        warn(`kiln-embed: ${error.message}; the ${names[at + 1]} build is used instead of ${name}`);
      }
    }
  }

  /** Vectors of texts, one after another. */
  async embed(texts, options, onProgress, isAborted) {
    const { prompt, promptText, dimensions, normalize, batchTokens } = options;
    const job = this.model.begin(texts, prompt, promptText, dimensions, normalize, batchTokens);
    try {
      const start = performance.now();
      for (let more = texts.length > 0; more; ) {
        more = job.step();
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
      job.free();
      throw error;
    }
    return job.finish();
  }

  explain(text, prompt) {
    return JSON.parse(this.model.explain(text, prompt));
  }

  countTokens(text) {
    return this.model.countTokens(text);
  }

  free() {
    this.model.free();
  }
}

function read(core, { kiln, files }) {
  if (kiln) return core.Model.fromKiln(kiln);
  const folder = new core.ModelFiles();
  for (const [path, bytes] of files) folder.add(path, bytes);
  return core.Model.fromFiles(folder);
}

/** A model and an index, and what can be asked of them. */
export class Engine {
  #session;
  #index;

  /** Runs an action by name; gives its result and the buffers that may be handed over with it. */
  async run(action, argument, onProgress, isAborted) {
    if (isAborted()) throw aborted();
    return this.#actions[action](argument ?? {}, onProgress, isAborted);
  }

  free() {
    this.#session?.free();
    this.#index?.free();
    this.#session = this.#index = undefined;
  }

  #actions = {
    open: async (files) => {
      this.#session?.free();
      this.#session = undefined;
      this.#session = await Session.open(files);
      return [this.#session.info];
    },
    embed: async ({ texts, options }, onProgress, isAborted) => {
      const vectors = await this.#session.embed(texts, options, onProgress, isAborted);
      return [vectors, [vectors.buffer]];
    },
    explain: ({ text, prompt }) => [this.#session.explain(text, prompt)],
    countTokens: ({ text }) => [this.#session.countTokens(text)],
    indexNew: async ({ dimensions, precision }) => {
      this.#index = new (await core()).VectorIndex(dimensions, precision);
      return [0];
    },
    indexRead: async ({ bytes }) => {
      this.#index = (await core()).VectorIndex.fromBytes(bytes);
      return [this.#index.length];
    },
    indexAdd: ({ vectors, dimensions }) => {
      this.#index.add(vectors, dimensions);
      return [this.#index.length];
    },
    indexRemove: ({ rows }) => {
      for (const row of rows) this.#index.swapRemove(row);
      return [this.#index.length];
    },
    indexSearch: ({ query, k, rescore }) => [this.#index.search(query, k, rescore)],
    indexBytes: () => {
      const bytes = this.#index.toBytes();
      return [bytes, [bytes.buffer]];
    },
  };
}
