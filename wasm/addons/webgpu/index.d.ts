import type { WebGpu } from "kiln-embed";

/** The build for WebGPU, for `Embedder.load(source, { webgpu })`. */
declare const webgpu: WebGpu;
export default webgpu;
