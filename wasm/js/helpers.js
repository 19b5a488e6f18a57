// Workers beside a model's first one, each with the model, who take their share of the texts of a call.

import { platform } from "./platform.js";

/** Texts that are handed out at a time. */
const SHARE = 16;
/** From so many texts on they are shared. */
const WORTH = 4 * SHARE;
/** Models that are larger are not loaded several times unless asked, in bytes. */
const LARGE = 64 * 2 ** 20;
/** Most workers unless asked. */
const USUAL = 4;
/** Most threads unless asked; the matrices of small models are no work for more. */
const THREADS = 8;

/** With how many threads a worker computes where it may: as asked, or one for each core, which several workers have already. */
export function threadsFor(asked, workers) {
  if (asked !== "auto") return asked;
  return workers === "auto" ? Math.min(THREADS, platform.cores()) : 1;
}

/** How many workers compute: as asked, or one for each core as long as the model is small and has no threads. */
export function workersFor(asked, bytes, threads) {
  if (asked !== "auto") return asked;
  return bytes > LARGE || threads > 1 ? 1 : Math.min(USUAL, platform.cores());
}

export class Helpers {
  #open;
  #most;
  /** Promises of those who were started. */
  #started = [];
  #ended = false;

  /** `open` gives the calls of one more; at most so many are started, when there is work for them. */
  constructor(open, most) {
    this.#open = open;
    this.#most = most;
  }

  /** Asks something of all who were started; one that does not do it is done without. */
  async each(ask) {
    await Promise.all(
      this.#started.map(async (one) => {
        const calls = await one;
        await (calls && ask(calls))?.catch((error) => this.#without(one, error));
      }),
    );
  }

  /** Whether to share texts; also where there are no others, so that later calls have their turn in between. */
  areWorth(texts) {
    return texts.length >= WORTH && !this.#ended;
  }

  /** One that cannot be had, for lack of memory say, is done without, with a warning. */
  #start() {
    while (this.#started.length < this.#most) {
      const one = this.#open().catch((error) => this.#without(one, error));
      this.#started.push(one);
    }
  }

  #without(one, error) {
    if (this.#ended) return;
    console.warn(`kiln-embed: ${error.message}; one worker fewer computes`);
    this.#most--;
    this.#started = this.#started.filter((other) => other !== one);
  }

  /** Vectors of all texts side by side; `first` is the call of the first worker. */
  async embed(texts, options, first, { onProgress, signal }) {
    // The longest first, so that all are done at about the same time; together with their like, so that
    // little is padded.
    const order = texts.map((_, at) => at).sort((a, b) => texts[b].length - texts[a].length);
    const shares = [];
    for (let at = 0; at < order.length; at += SHARE) shares.push({ rows: order.slice(at, at + SHARE), texts: 0, tokens: 0 });
    const waiting = [...shares];
    const busy = new Set();
    const stop = new AbortController();
    const abort = () => stop.abort();
    signal?.addEventListener("abort", abort, { once: true });
    if (signal?.aborted) abort();

    const start = performance.now();
    let over = false;
    const report = () => {
      // Those who hear of an abort late still report.
      if (over) return;
      const sum = (what) => shares.reduce((sum, share) => sum + share[what], 0);
      const done = sum("texts");
      const textsPerSecond = done / Math.max(1e-6, (performance.now() - start) / 1000);
      onProgress?.({ texts: done, total: texts.length, tokens: sum("tokens"), textsPerSecond });
    };
    let vectors;
    const compute = async (call, share) => {
      const progress = ({ texts, tokens }) => {
        Object.assign(share, { texts, tokens });
        report();
      };
      const argument = { texts: share.rows.map((row) => texts[row]), options };
      const found = await call("embed", argument, { onProgress: progress, signal: stop.signal });
      const width = found.length / share.rows.length;
      vectors ??= new Float32Array(texts.length * width);
      share.rows.forEach((row, at) => vectors.set(found.subarray(at * width, (at + 1) * width), row * width));
    };
    const work = async (call) => {
      while (waiting.length > 0) {
        const share = waiting.shift();
        try {
          await compute(call, share);
        } catch (error) {
          Object.assign(share, { texts: 0, tokens: 0 });
          waiting.unshift(share);
          throw error;
        }
      }
    };
    const help = async (one) => {
      const calls = await one;
      if (!calls || waiting.length === 0) return;
      const working = work((...call) => calls.call(...call)).catch((error) => {
        // What a worker that died has left is done by the others.
        if (error.name !== "WorkerError") throw error;
        this.#without(one, error);
      });
      busy.add(working);
      await working.finally(() => busy.delete(working));
    };

    try {
      this.#start();
      let failed;
      const failure = new Promise((_, reject) => (failed = reject));
      for (const one of this.#started) help(one).catch(failed);
      const all = async () => {
        // Those who are still being loaded are not waited for; shares may come back from those at work.
        do {
          await work(first);
          await Promise.allSettled(busy);
        } while (waiting.length > 0);
      };
      await Promise.race([all(), failure]);
      return vectors;
    } catch (error) {
      stop.abort();
      throw error;
    } finally {
      over = true;
      signal?.removeEventListener("abort", abort);
    }
  }

  end(why) {
    this.#ended = true;
    for (const one of this.#started) one.then((calls) => calls?.end(why));
  }
}
