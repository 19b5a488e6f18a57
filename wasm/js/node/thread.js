// Node's worker's worker.

import { lendItself } from "../lending.js";
import { port } from "./port.js";

lendItself(port);
