import { defineConfig } from "astro/config";

export default defineConfig({
  vite: {
    // As in examples/vite: the development server's bundling in advance would move the worker away from its files.
    optimizeDeps: { exclude: ["kiln-embed"] },
    worker: { format: "es" },
  },
});
