// A page's worker.

import { serveCalls } from "./serving.js";

serveCalls({
  post: (message, transfer) => postMessage(message, transfer ?? []),
  listen: (hear) => (onmessage = ({ data }) => hear(data)),
});
