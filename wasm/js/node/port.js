// The port of a worker to who started it.

import { parentPort } from "node:worker_threads";

export const port = {
  post: (message, transfer) => parentPort.postMessage(message, transfer),
  listen: (hear) => parentPort.on("message", hear),
};
