// Node's workers with the interface of a page's.

import { Worker } from "node:worker_threads";

/** A worker of the package: `worker` or `thread`. */
export function startWorker(kind) {
  // Not the arguments of the program, which may ask for what files cannot be run with (--input-type).
  const worker = new Worker(new URL(`./${kind}.js`, import.meta.url), { name: `kiln-embed-${kind}`, execArgv: [] });
  const page = {
    onmessage: undefined,
    onmessageerror: undefined,
    onerror: undefined,
    postMessage: (message, transfer) => worker.postMessage(message, transfer),
    terminate: () => void worker.terminate(),
    ref: () => worker.ref(),
    unref: () => worker.unref(),
  };
  worker.on("message", (data) => page.onmessage?.({ data }));
  worker.on("messageerror", () => page.onmessageerror?.());
  worker.on("error", (error) => page.onerror?.({ message: error.message }));
  // Of one that is terminated nobody hears any more.
  worker.on("exit", (code) => page.onerror?.({ message: `it ended with code ${code}` }));
  return page;
}
