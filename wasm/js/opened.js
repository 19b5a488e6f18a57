// A model in a worker of its own, or in this thread.

import { aborted } from "./aborted.js";
import { LocalCalls, WorkerCalls } from "./calls.js";
import { modelFiles } from "./files.js";
import { sumOf } from "./kept.js";

/** All bytes of a model. */
const parts = ({ kiln, files }) => (kiln ? [kiln] : files.map(([, bytes]) => bytes));

/** Sums of files that no kiln.json has the sums of; undefined where sums cannot be had. */
async function sumsOfPlain({ files }) {
  if (!files || !globalThis.crypto?.subtle || files.some(([name]) => name === "kiln.json")) return undefined;
  const sums = [];
  // One after another: each is copied for it.
  for (const [name, bytes] of files) sums.push(`${name} ${await sumOf(bytes)}`);
  return sums.join();
}

/** Where a model's calls go, what it is, how many bytes it has, and what tells it from another version of it. */
export async function opened(source, { action = "open", more, device, cache, worker, weights, threads, onProgress, signal }) {
  const calls = worker ? new WorkerCalls() : new LocalCalls();
  // Reading a model does not stop in the midst of it; who reads it can be ended.
  const abort = () => calls.end(aborted());
  signal?.addEventListener("abort", abort, { once: true });
  try {
    let kept = false;
    let bytes = 0;
    let sums;
    const open = async (fresh) => {
      const files = await modelFiles(source, { cache, fresh, onProgress, onKept: () => (kept = true), signal });
      onProgress?.({ stage: "open" });
      bytes = parts(files).reduce((sum, part) => sum + part.byteLength, 0);
      // Embedders alone are opened more than once.
      if (action === "open") sums = await sumsOfPlain(files);
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
      info = await open(true).catch((again) => {
        // Without a network it is what is kept that is wrong.
        throw again.name === "NetworkError" ? error : again;
      });
    }
    return { calls, info, bytes, version: `${info.fingerprint ?? sums} ${info.dimensions}` };
  } catch (error) {
    calls.end();
    throw error;
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}

/** What was opened again, where it is of the same version as the first: vectors of two are of two spaces. */
export function ofVersion(version, again) {
  if (again.version === version) return again;
  again.calls.end();
  throw Object.assign(new Error("the model's files are others by now than when it was loaded; load the model again"), { name: "VersionError" });
}
