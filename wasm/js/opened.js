// A model in a worker of its own, or in this thread.

import { aborted } from "./aborted.js";
import { LocalCalls, WorkerCalls } from "./calls.js";
import { modelFiles } from "./files.js";

/** All bytes of a model. */
const parts = ({ kiln, files }) => (kiln ? [kiln] : files.map(([, bytes]) => bytes));

/** Where a model's calls go, what it is, and how many bytes it has. */
export async function opened(source, { action = "open", more, device, cache, worker, weights, threads, onProgress, signal }) {
  const calls = worker ? new WorkerCalls() : new LocalCalls();
  // Reading a model does not stop in the midst of it; who reads it can be ended.
  const abort = () => calls.end(aborted());
  signal?.addEventListener("abort", abort, { once: true });
  try {
    let kept = false;
    let bytes = 0;
    const open = async (fresh) => {
      const files = await modelFiles(source, { cache, fresh, onProgress, onKept: () => (kept = true), signal });
      onProgress?.({ stage: "open" });
      bytes = parts(files).reduce((sum, part) => sum + part.byteLength, 0);
      // Bytes of the caller's own stay the caller's.
      const own = source instanceof ArrayBuffer || ArrayBuffer.isView(source);
      const transfer = own ? [] : [...new Set(parts(files).map((part) => part.buffer))];
      return calls.call(action, { ...files, ...more, device, threads, weights }, { signal, transfer });
    };
    let info;
    try {
      info = await open(false);
    } catch (error) {
      // What was kept may be damaged, or of another version than the rest; other failures have names of their own.
      if (!kept || error.name !== "Error") throw error;
      info = await open(true);
    }
    return { calls, info, bytes };
  } catch (error) {
    calls.end();
    throw error;
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}
