// A page's worker.

import { importModule } from "./modules.js";
import { use } from "./platform.js";
import { serveCalls } from "./serving.js";

use({ importModule });
serveCalls({
  post: (message, transfer) => postMessage(message, transfer ?? []),
  listen: (hear) => (onmessage = ({ data }) => hear(data)),
});
