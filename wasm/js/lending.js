// What a worker's worker does: it lends itself to the core that they share the memory of.

const BUILDS = {
  threads: () => import("./threads/kiln_wasm.js"),
  "train-threads": () => import("./train-threads/kiln_wasm.js"),
};

/** Waits for the build and its memory, says whether it could be had (undefined, or why not), and lends itself until it is ended. */
export function lendItself({ post, listen }) {
  listen(async ({ build, shared, port }) => {
    const [module_or_path, memory] = shared;
    let core;
    try {
      core = await BUILDS[build]();
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
