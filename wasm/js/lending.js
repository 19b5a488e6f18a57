// What a worker's worker does: it lends itself to the core that they share the memory of.

import init, { lend } from "./threads/kiln_wasm.js";

/** Waits for the memory, says whether it could be had (undefined, or why not), and lends itself until it is ended. */
export function lendItself({ post, listen }) {
  listen(async ({ shared, port }) => {
    const [module_or_path, memory] = shared;
    try {
      await init({ module_or_path, memory });
    } catch (error) {
      return post(String(error));
    }
    post(undefined);
    try {
      lend();
    } catch (error) {
      port.postMessage(String(error));
    }
  });
}
