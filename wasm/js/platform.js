// What differs between a browser and a runtime on a server: workers, what is kept, and where a model may lie. This is
// the browser's; another runtime's entry puts its own in its place before anything is called (node/index.js).

import * as indexes from "./store.js";

/** Whether this file is of another site than the page, as from a CDN; workers have to be of the page's own. */
function isElsewhere() {
  const { protocol, origin } = new URL(import.meta.url);
  return /^https?:$/.test(protocol) && origin !== globalThis.location?.origin;
}

/** A worker of the page's own that does nothing but import the one from there. */
function workerFromElsewhere(kind) {
  const far = import.meta.url.replace(/[^/]*$/, `${kind}.js`);
  const near = URL.createObjectURL(new Blob([`import ${JSON.stringify(far)};`], { type: "text/javascript" }));
  const worker = new Worker(near, { type: "module", name: `kiln-embed-${kind}` });
  // It has to be there until the worker has begun.
  setTimeout(() => URL.revokeObjectURL(near), 60_000);
  return worker;
}

/** As the rest of the package asks for it; see `use`. */
export const platform = {
  /** Whether the package's own workers can be started, so that calls go to one unless told otherwise. */
  hasWorkers: true,
  /** A worker of the package, `worker` or `thread`, with the interface of a page's. */
  startWorker(kind) {
    if (isElsewhere()) return workerFromElsewhere(kind);
    // Bundlers look for each of these as it is written here.
    return kind === "thread"
      ? new Worker(new URL("./thread.js", import.meta.url), { type: "module", name: "kiln-embed-thread" })
      : new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "kiln-embed" });
  },
  /** Has a worker, or a port, keep the program running, or not; a page runs on by itself. */
  keepAlive() {},
  /** Whether this thread may wait for others, and share a memory with them. */
  canShare: () => globalThis.crossOriginIsolated === true && typeof WorkerGlobalScope === "function" && typeof Worker === "function",
  cores: () => globalThis.navigator?.hardwareConcurrency ?? 1,
  /** Whether a GPU is tried where nobody asks for one. */
  triesGpu: true,
  /** A build's bytes, or compiled module, by its name; undefined for the file beside the build's JavaScript. */
  wasm: () => undefined,
  /** The address of a source; throws where it is none. */
  address: (source) => new URL(source, globalThis.location?.href),
  /** A file of this machine by its address: see node/files.js. Pages cannot read any. */
  readFile: undefined,
  fetch: (url, options) => fetch(url, options),
  /** What is kept by address, as Cache Storage has it; undefined where nothing can be kept. */
  openCache: async (name) => globalThis.caches?.open(name),
  deleteCache: async (name) => globalThis.caches?.delete(name),
  /** Where saved indexes are: `save`, `load`, `remove` and `names`. */
  indexes,
};

/** Takes another runtime's answers for the browser's. */
export function use(other) {
  Object.assign(platform, other);
}
