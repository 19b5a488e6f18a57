// Calls to the worker, or to the same code in this thread.

import { aborted } from "./aborted.js";
import { Engine } from "./engine.js";
import { workerFromElsewhere } from "./elsewhere.js";
import { platform } from "./platform.js";

function failure({ name, message }) {
  return name === "AbortError" ? new DOMException(message, name) : Object.assign(new Error(message), { name });
}

const OPTIONS = { type: "module", name: "kiln-embed" };

// Here and not in a file that the worker uses too: what would start itself is too much for some bundlers.
const start = () =>
  platform.startWorker?.("worker") ?? workerFromElsewhere("worker.js", OPTIONS) ?? new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "kiln-embed" });

/** A worker whose calls are promises. */
export class WorkerCalls {
  #worker;
  #waiting = new Map();
  #next = 0;
  #ended;

  constructor() {
    this.#worker = start();
    platform.keepAlive(this.#worker, false);
    this.#worker.onmessage = ({ data: { id, result, error, progress, port } }) => {
      if (port) {
        port.onmessage = ({ data: why }) => this.#fail(`a thread of it ended: ${why}`);
        platform.keepAlive(port, false);
        return;
      }
      // It can compute no more, and tells so of every call.
      if (error?.name === "WorkerError") return this.end(failure(error));
      const call = this.#waiting.get(id);
      if (!call) return;
      if (progress) return call.onProgress?.(progress);
      this.#over(id);
      error ? call.reject(failure(error)) : call.resolve(result);
    };
    this.#worker.onerror = (event) => {
      event.preventDefault?.();
      this.#fail(event.message || "its files could not be loaded; are they served beside kiln-embed's index.js?");
    };
    this.#worker.onmessageerror = () => this.#fail("what it sent could not be read");
  }

  #fail(why) {
    this.end(failure({ name: "WorkerError", message: `the worker of kiln-embed failed: ${why}; load the model, or the index, again` }));
  }

  call(action, argument, { onProgress, signal, transfer = [] } = {}) {
    if (this.#ended) return Promise.reject(this.#ended);
    if (signal?.aborted) return Promise.reject(aborted());
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      const abort = () => this.#worker.postMessage({ id, abort: true });
      const over = (done) => (value) => {
        signal?.removeEventListener("abort", abort);
        done(value);
      };
      // What cannot be sent is thrown here, and nothing waits for it.
      this.#worker.postMessage({ id, action, argument }, transfer);
      platform.keepAlive(this.#worker, true);
      this.#waiting.set(id, { resolve: over(resolve), reject: over(reject), onProgress });
      signal?.addEventListener("abort", abort, { once: true });
    });
  }

  /** Nobody waits for a call any more; a program that waits for none may end. */
  #over(id) {
    this.#waiting.delete(id);
    if (this.#waiting.size === 0) platform.keepAlive(this.#worker, false);
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
  /** What rejects the calls that wait or run. */
  #waiting = new Set();
  #ended;

  call(action, argument, { onProgress, signal } = {}) {
    if (this.#ended) return Promise.reject(this.#ended);
    const isAborted = () => signal?.aborted || this.#ended !== undefined;
    const run = async () => (await this.#engine.run(action, argument, onProgress, isAborted))[0];
    return new Promise((resolve, reject) => {
      this.#waiting.add(reject);
      this.#last = this.#last.then(run).then(resolve, reject).then(() => void this.#waiting.delete(reject));
    });
  }

  end(why = new Error("disposed")) {
    if (this.#ended) return;
    this.#ended = why;
    // Told at once: what runs ends at its next batch, and never where a GPU does not answer.
    for (const reject of this.#waiting) reject(why);
    this.#waiting.clear();
    this.#last.then(() => this.#engine.free());
  }
}
