import { join } from "node:path";

// webpack finds the worker and the core by itself.
export default {
  mode: "production",
  entry: "./main.js",
  output: { path: join(import.meta.dirname, "dist"), clean: true },
  performance: { hints: false },
};
