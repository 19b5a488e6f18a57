// What differs between a browser and a runtime on a server: workers, what is kept, and where a model may lie. This is
// the browser's; another runtime's entry puts its own in its place before anything is called (node/index.js).

import { indexes, states } from "./store.js";

/** As the rest of the package asks for it; see `use`. */
export const platform = {
  /** Whether the package's own workers can be started, so that calls go to one unless told otherwise. */
  hasWorkers: true,
  /** Starts a worker of the package, `worker` or `thread`, with the interface of a page's; where undefined, a page's is started. */
  startWorker: undefined,
  /** Has a worker, or a port, keep the program running, or not; a page runs on by itself. */
  keepAlive() {},
  /** Whether this thread may wait for others, and share a memory with them. */
  canShare: () => globalThis.crossOriginIsolated === true && typeof WorkerGlobalScope === "function" && typeof Worker === "function",
  cores: () => globalThis.navigator?.hardwareConcurrency ?? 1,
  /** Whether a GPU is tried where nobody asks for one. */
  triesGpu: true,
  /** Imports a module by its address, as those of add-ons; undefined where modules have no address, as in workerd. */
  importModule: undefined,
  /** A build's bytes, compiled module or address, by its name, and where an add-on's is; undefined for the file beside its JavaScript. */
  wasm: (build, address) => address,
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
  /** Where states of training are, likewise. */
  states,
};

/** Takes another runtime's answers for the browser's. */
export function use(other) {
  Object.assign(platform, other);
}
