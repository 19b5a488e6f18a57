// Node's worker.

import { use } from "../platform.js";
import { serveCalls } from "../serving.js";
import { node } from "./platform.js";
import { port } from "./port.js";

use(node);
serveCalls(port);
