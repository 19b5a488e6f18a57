// What a worker does with the messages that it gets: one call after another, aborts in between.

import { Engine } from "./engine.js";

/** Answers calls: `post` sends a message with what is handed over, `listen` takes the function that hears of those that come. */
export function serveCalls({ post, listen }) {
  const engine = new Engine((port) => post({ port }, [port]));
  let last = Promise.resolve();
  /** Calls that wait or run, and whether they are aborted. */
  const calls = new Map();

  listen(({ id, action, argument, abort }) => {
    const call = calls.get(id);
    if (abort) {
      if (call) call.aborted = true;
      return;
    }
    calls.set(id, { aborted: false });
    last = last.then(async () => {
      const call = calls.get(id);
      try {
        const report = (progress) => post({ id, progress });
        const [result, transfer = []] = await engine.run(action, argument, report, () => call.aborted);
        post({ id, result }, transfer);
      } catch (error) {
        post({ id, error: { name: error.name ?? "Error", message: error.message ?? String(error) } });
      } finally {
        calls.delete(id);
      }
    });
  });
}
