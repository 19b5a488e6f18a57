// A worker's worker, which lends itself to the core that they share the memory of.

import init, { lend } from "./threads/kiln_wasm.js";

onmessage = async ({ data: { shared, port } }) => {
  const [module_or_path, memory] = shared;
  try {
    await init({ module_or_path, memory });
  } catch (error) {
    return postMessage(String(error));
  }
  postMessage(undefined);
  try {
    lend();
  } catch (error) {
    port.postMessage(String(error));
  }
};
