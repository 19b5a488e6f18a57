// kiln-embed in workerd, where Cloudflare's Workers run, by miniflare. By tests/browser.sh.

import assert from "node:assert/strict";
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { cosine, native, texts } from "../browser/vectors.mjs";

const { KILN_PKG, KILN_MODELS, KILN_RUNTIMES } = process.env;

const PROGRAM = `import { Embedder, Index, clearCache } from "./kiln-embed/workerd.js";
import training from "./kiln-embed-train/workerd.js";
import webgpu from "./kiln-embed-webgpu/workerd.js";

const said = (run) => run().then(() => "it ran", (error) => \`\${error.name}: \${error.message}\`);

export default {
  async fetch(request) {
    const form = await request.formData();
    const texts = JSON.parse(form.get("texts"));
    const model = await Embedder.load(await form.get("model").arrayBuffer());
    const vectors = await model.embed(texts);
    const index = await Index.create({ dimensions: model.dimensions });
    await index.add(vectors.map((vector, id) => ({ id, vector })));
    const [hit] = await index.search(vectors[3], { k: 1 });
    const far = await Embedder.load(form.get("address"));
    const wrong = [
      await said(() => Embedder.load(form.get("address"), { worker: true })),
      await said(() => index.save("x")),
      await said(() => model.embed(["a", null])),
      // Who imports both for pages too hands over nothing here.
      await said(() => model.trainer({ training })),
      await said(() => Embedder.load(form.get("address"), { webgpu, device: "webgpu" })),
      await said(() => clearCache()),
      await said(() => clearCache(form.get("address"))),
    ];
    const found = { device: model.device, vectors: vectors.map((vector) => [...vector]), hit: hit.id, far: [...(await far.embed(texts[0]))], wrong };
    return Response.json(found);
  },
};
`;

const missing = existsSync(join(KILN_RUNTIMES ?? "", "node_modules/miniflare")) ? false : "no miniflare here; tests/setup.sh runtimes installs it";

test("workerd: native vectors, an index, a model from an address", { skip: missing }, async (run) => {
  // Its fetch takes its own classes alone.
  const { FormData, Miniflare, Response } = createRequire(`${KILN_RUNTIMES}/`)("miniflare");
  const root = mkdtempSync(join(tmpdir(), "kiln-workerd-"));
  run.after(() => rmSync(root, { recursive: true, force: true }));
  for (const addOn of ["", "-train", "-webgpu"]) {
    const { exports } = JSON.parse(readFileSync(join(KILN_PKG + addOn, "package.json")));
    assert.equal(exports["."].workerd, "./workerd.js");
    cpSync(KILN_PKG + addOn, join(root, `kiln-embed${addOn}`), { recursive: true });
  }
  writeFileSync(join(root, "program.mjs"), PROGRAM);
  const mini = readFileSync(join(KILN_MODELS, "mini.kiln"));
  const workerd = new Miniflare({
    modules: true,
    modulesRoot: root,
    scriptPath: join(root, "program.mjs"),
    modulesRules: [
      { type: "ESModule", include: ["**/*.js", "**/*.mjs"] },
      { type: "CompiledWasm", include: ["**/*.wasm"] },
    ],
    compatibilityDate: "2025-01-01",
    // What the program fetches.
    outboundService: () => new Response(mini, { headers: { etag: '"1"', "content-length": String(mini.length) } }),
  });
  run.after(() => workerd.dispose());
  const form = new FormData();
  form.set("model", new Blob([mini]));
  form.set("texts", JSON.stringify(texts));
  form.set("address", "https://models.example/mini.kiln");
  const answer = await workerd.dispatchFetch("http://program.example/", { method: "POST", body: form });
  const body = await answer.text();
  assert.equal(answer.status, 200, body);
  const found = JSON.parse(body);
  const expected = native("native-mini.jsonl");
  found.vectors.forEach((vector, at) => assert.ok(cosine(vector, expected[at]) > 0.9999, texts[at]));
  assert.ok(cosine(found.far, expected[0]) > 0.9999);
  assert.equal(found.device, "cpu (wasm, relaxed SIMD)");
  assert.equal(found.hit, 3);
  assert.match(found.wrong[0], /^Error: workerd has no workers/);
  assert.match(found.wrong[1], /^Error: workerd keeps no indexes/);
  assert.match(found.wrong[2], /^TypeError: texts\[1\] is null/);
  assert.equal(found.wrong[3], "Error: the train build is not part of kiln-embed in workerd; models are taught in pages, or in Node");
  assert.match(found.wrong[4], /^DeviceError: there is no WebGPU adapter here/);
  for (const said of found.wrong.slice(5)) assert.match(said, /^Error: workerd does not say what its cache holds/);
});
