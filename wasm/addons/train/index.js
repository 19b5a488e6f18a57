// Where kiln-embed's builds that train are; each address is written out, so that bundlers find the file.

export default Object.freeze({
  package: "kiln-embed-train",
  version: "0.1.0",
  builds: Object.freeze({
    train: Object.freeze({
      js: new URL("./train/kiln_wasm.js", import.meta.url).href,
      wasm: new URL("./train/kiln_wasm_bg.wasm", import.meta.url).href,
    }),
    "train-threads": Object.freeze({
      js: new URL("./train-threads/kiln_wasm.js", import.meta.url).href,
      wasm: new URL("./train-threads/kiln_wasm_bg.wasm", import.meta.url).href,
    }),
  }),
});
