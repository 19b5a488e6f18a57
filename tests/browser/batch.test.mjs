// A text has the same vector, bit by bit, whatever is computed beside it, and by however many: models in int8 and
// int4 on the CPU. In pages that are isolated, for threads. By tests/browser.sh.

import assert from "node:assert/strict";
import { test } from "node:test";
import { openKiln, withPage } from "./browser.mjs";
import { packages } from "./server.mjs";
import { texts } from "./vectors.mjs";

const { KILN_MODELS } = process.env;

let server, page;
withPage({ roots: { page: import.meta.dirname, ...packages(), models: KILN_MODELS }, isolated: true }, async (begun) => {
  ({ server, page } = begun);
  page.on("pageerror", (error) => assert.fail(`the page threw ${error}`));
  await openKiln(page, server);
});

for (const [name, file] of [["int8", "model"], ["int4", "mini"]]) {
  test(`vectors are the same bits in every batch, with threads and with workers: ${name}`, { timeout: 300_000 }, async () => {
    const different = await page.evaluate(
      async ([url, texts]) => {
        const load = (options) => window.kiln.Embedder.load(url, { device: "cpu", ...options });
        const bits = (vector) => new Uint32Array(vector.buffer, vector.byteOffset, vector.length).join();
        const one = await load({ threads: 1, workers: 1 });
        const alone = [];
        for (const text of texts) alone.push(bits(await one.embed(text)));
        const different = [];
        const compare = (what, vectors) => vectors.forEach((vector, at) => bits(vector) !== alone[at] && different.push(`text ${at} ${what}`));

        // Texts of all lengths beside them, so that they are padded, and stand elsewhere in their batch; so many in all that workers
        // share them.
        const others = Array.from({ length: 64 - texts.length }, (_, at) => `${at} ${"ships and boats in the harbour ".repeat(at % 13)}`);
        for (const [who, options] of [["1 thread", { threads: 1, workers: 1 }], ["2 threads", { threads: 2 }], ["3 workers", { workers: 3 }]]) {
          const model = who === "1 thread" ? one : await load(options);
          for (const batchTokens of [1, 64, 256, 1024, 8192]) {
            compare(`in batches of ${batchTokens} tokens with ${who}`, await model.embed(texts, { batchTokens }));
            const beside = await model.embed([...texts, ...others], { batchTokens });
            compare(`beside others in batches of ${batchTokens} tokens with ${who}`, beside.slice(0, texts.length));
          }
          compare(`by itself with ${who}`, await Promise.all(texts.map((text) => model.embed(text))));
          model.dispose();
        }
        return different;
      },
      [`/models/${file}.kiln`, texts],
    );
    assert.deepEqual(different, []);
  });
}
