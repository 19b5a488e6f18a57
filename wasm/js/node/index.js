// kiln-embed in Node, Deno and Bun: the same as in a page, with files, folders and worker_threads in place of what
// only browsers have.

import { use } from "../platform.js";
import { node } from "./platform.js";

use(node);

export * from "../main.js";
