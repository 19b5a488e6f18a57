import { defineConfig } from "vite";

export default defineConfig({
  // The development server's bundling in advance would move the worker away from its files.
  optimizeDeps: { exclude: ["kiln-embed"] },
  worker: { format: "es" },
  // Only because this example takes the package from beside it and not from npm.
  server: { fs: { allow: ["../.."] } },
});
