// The worker: one call after another, aborts in between.

import { Engine } from "./engine.js";

const engine = new Engine((port) => postMessage({ port }, [port]));
let last = Promise.resolve();
/** Calls that wait or run, and whether they are aborted. */
const calls = new Map();

onmessage = ({ data: { id, action, argument, abort } }) => {
  const call = calls.get(id);
  if (abort) {
    if (call) call.aborted = true;
    return;
  }
  calls.set(id, { aborted: false });
  last = last.then(async () => {
    const call = calls.get(id);
    try {
      const report = (progress) => postMessage({ id, progress });
      const [result, transfer = []] = await engine.run(action, argument, report, () => call.aborted);
      postMessage({ id, result }, transfer);
    } catch (error) {
      postMessage({ id, error: { name: error.name ?? "Error", message: error.message ?? String(error) } });
    } finally {
      calls.delete(id);
    }
  });
};
