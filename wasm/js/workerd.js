// kiln-embed in workerd, where Cloudflare's Workers run: everything in the thread that calls, and the core as a module
// that is part of the program, as bytes may not be compiled there.

import relaxed from "./relaxed/kiln_wasm_bg.wasm";
import { use } from "./platform.js";

use({
  hasWorkers: false,
  startWorker() {
    throw new Error("workerd has no workers that kiln-embed could start; leave worker out, or make it false");
  },
  canShare: () => false,
  cores: () => 1,
  triesGpu: false,
  wasm(build) {
    if (build !== "relaxed") throw new Error(`the ${build} build is not part of kiln-embed in workerd; models are taught in pages, or in Node`);
    return relaxed;
  },
  // It knows no kinds of caching, and refuses to be told of one.
  fetch: (url, { cache, ...options }) => fetch(url, options),
  indexes: nothing("indexes"),
  states: nothing("states of training"),
});

/** A store that keeps none of what it is asked for. */
function nothing(what) {
  const none = async () => {
    throw new Error(`workerd keeps no ${what}; export them, keep what you get where you keep data, and import it`);
  };
  return Object.fromEntries(["save", "load", "remove", "names"].map((name) => [name, none]));
}

export * from "./main.js";

/** In the place of the one that goes through what is kept. */
export async function clearCache() {
  throw new Error("workerd does not say what its cache holds, so nothing of it can be cleared; load with cache: false, or from another address");
}
