import { defineConfig } from "astro/config";

export default defineConfig({
  vite: {
    // As in examples/vite: the development server's bundling in advance would move them away from their files.
    optimizeDeps: { exclude: ["kiln-embed", "kiln-embed-webgpu"] },
    worker: { format: "es" },
  },
});
