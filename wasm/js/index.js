// kiln-embed: text embeddings in the page. The types and their docs are in index.d.ts.

import { importModule } from "./modules.js";
import { use } from "./platform.js";

use({ importModule });

export * from "./main.js";
