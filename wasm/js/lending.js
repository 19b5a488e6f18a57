// What a worker's worker does: it lends itself to the core that they share the memory of.

import { importModule } from "./modules.js";

/**
 * Waits for the build, which is this package's where no address says otherwise, and its memory, says whether it could be had
 * (undefined, or why not), and lends itself until it is ended.
 */
export function lendItself({ post, listen }) {
  listen(async ({ js, shared, port }) => {
    const [module_or_path, memory] = shared;
    let core;
    try {
      core = await (js === undefined ? import("./threads/kiln_wasm.js") : importModule(js));
      await core.default({ module_or_path, memory });
    } catch (error) {
      return post(String(error));
    }
    post(undefined);
    try {
      core.lend();
    } catch (error) {
      port.postMessage(String(error));
    }
  });
}
