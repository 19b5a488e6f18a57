// Calls to the worker, or to the same code in this thread.

import { Engine, aborted } from "./engine.js";

function failure({ name, message }) {
  return name === "AbortError" ? new DOMException(message, name) : Object.assign(new Error(message), { name });
}

/** A worker whose calls are promises. */
export class WorkerCalls {
  #worker;
  #waiting = new Map();
  #next = 0;
  #ended;

  constructor() {
    this.#worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "kiln-embed" });
    this.#worker.onmessage = ({ data: { id, result, error, progress } }) => {
      const call = this.#waiting.get(id);
      if (!call) return;
      if (progress) return call.onProgress?.(progress);
      this.#waiting.delete(id);
      error ? call.reject(failure(error)) : call.resolve(result);
    };
    this.#worker.onerror = (event) => {
      event.preventDefault?.();
      const why = event.message || "its files could not be loaded; are they served beside kiln-embed's index.js?";
      this.end(Object.assign(new Error(`the worker of kiln-embed failed: ${why}`), { name: "WorkerError" }));
    };
  }

  call(action, argument, { onProgress, signal, transfer = [] } = {}) {
    if (this.#ended) return Promise.reject(this.#ended);
    if (signal?.aborted) return Promise.reject(aborted());
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      const abort = () => this.#worker.postMessage({ id, abort: true });
      signal?.addEventListener("abort", abort, { once: true });
      const over = (done) => (value) => {
        signal?.removeEventListener("abort", abort);
        done(value);
      };
      this.#waiting.set(id, { resolve: over(resolve), reject: over(reject), onProgress });
      this.#worker.postMessage({ id, action, argument }, transfer);
    });
  }

  /** Ends the worker, and with it all that it holds. */
  end(why = new Error("disposed")) {
    if (this.#ended) return;
    this.#ended = why;
    this.#worker.terminate();
    for (const call of this.#waiting.values()) call.reject(why);
    this.#waiting.clear();
  }
}

/** The same calls in this thread, for those who are in a worker of their own. */
export class LocalCalls {
  #engine = new Engine();
  #last = Promise.resolve();
  #ended;

  call(action, argument, { onProgress, signal } = {}) {
    const run = async () => {
      if (this.#ended) throw this.#ended;
      const isAborted = () => signal?.aborted || this.#ended !== undefined;
      try {
        return (await this.#engine.run(action, argument, onProgress, isAborted))[0];
      } catch (error) {
        throw this.#ended ?? error;
      }
    };
    const result = this.#last.then(run);
    this.#last = result.catch(() => {});
    return result;
  }

  end(why = new Error("disposed")) {
    if (this.#ended) return;
    this.#ended = why;
    // A run that is under way ends at its next batch.
    this.#last.then(() => this.#engine.free());
  }
}
