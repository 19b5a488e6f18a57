// A page's worker's worker.

import { lendItself } from "./lending.js";

lendItself({ post: (message) => postMessage(message), listen: (hear) => (onmessage = ({ data }) => hear(data)) });
