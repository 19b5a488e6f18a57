// What platform.js asks of Node, and of Deno and Bun, which have Node's modules.

import { readFile } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { isMainThread } from "node:worker_threads";
import { importModule } from "../modules.js";
import { deleteFolderCache, openFolderCache } from "./cache.js";
import { readModelFile } from "./files.js";
import { indexes, states } from "./store.js";
import { startWorker } from "./workers.js";

/** An address with a scheme; one letter and a colon are a drive of Windows. */
const ADDRESS = /^[a-z][a-z\d+.-]+:/i;

/** An address, or that of a path. */
function address(source) {
  return source instanceof URL || ADDRESS.test(source) ? new URL(source) : pathToFileURL(resolve(source));
}

export const node = {
  startWorker,
  keepAlive: (one, does) => (does ? one.ref?.() : one.unref?.()),
  canShare: () => !isMainThread,
  cores: availableParallelism,
  // Deno has WebGPU, and complains about a machine without a screen where it is asked for it.
  triesGpu: false,
  wasm: (build, address = new URL(`../${build}/kiln_wasm_bg.wasm`, import.meta.url)) => readFile(new URL(address)),
  importModule,
  address,
  readFile: readModelFile,
  openCache: openFolderCache,
  deleteCache: deleteFolderCache,
  indexes,
  states,
};
