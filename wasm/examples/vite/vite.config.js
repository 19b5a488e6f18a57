import { defineConfig } from "vite";

export default defineConfig({
  // The development server's bundling in advance would move them away from their files.
  optimizeDeps: { exclude: ["kiln-embed", "kiln-embed-train", "kiln-embed-webgpu"] },
  worker: { format: "es" },
  // Only because this example takes the packages from beside it and not from npm.
  server: { fs: { allow: ["../.."] } },
});
