// Where kiln-embed's build for WebGPU is; each address is written out, so that bundlers find the file.

export default Object.freeze({
  package: "kiln-embed-webgpu",
  version: "0.1.0",
  builds: Object.freeze({
    webgpu: Object.freeze({
      js: new URL("./webgpu/kiln_wasm.js", import.meta.url).href,
      wasm: new URL("./webgpu/kiln_wasm_bg.wasm", import.meta.url).href,
    }),
  }),
});
