// A worker's worker, which lends itself to the core that they share the memory of.

import init, { lend } from "./threads/kiln_wasm.js";

onmessage = async ({ data: [module_or_path, memory] }) => {
  try {
    await init({ module_or_path, memory });
  } catch (error) {
    return postMessage(String(error));
  }
  postMessage(undefined);
  lend();
};
