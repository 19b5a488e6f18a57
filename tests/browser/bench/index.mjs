// Time of an exact search among vectors in the page: rows of width 384, one thread, in each precision.
//
//   node tests/browser/bench/index.mjs --pkg wasm/pkg --playwright DIR --chromium FILE [--rows 100000]

import { createRequire } from "node:module";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { packages, serve } from "../server.mjs";

const { values: options } = parseArgs({
  options: { pkg: { type: "string" }, playwright: { type: "string" }, chromium: { type: "string" }, rows: { type: "string", default: "100000" } },
});
const { chromium } = createRequire(options.playwright + "/")("playwright-core");
const browser = await chromium.launch({ executablePath: options.chromium, args: ["--no-sandbox"] });
const server = await serve({ page: join(import.meta.dirname, ".."), ...packages(options.pkg) });
const page = await browser.newPage();
await page.goto(`${server.url}/page/page.html`);
await page.waitForFunction(() => window.kiln);
for (const precision of ["f32", "int8", "binary", "binary+int8"]) {
  const times = await page.evaluate(async ([precision, rows]) => {
    const { Index } = window.kiln;
    const dimensions = 384;
    // Directions all over the sphere, by a fixed generator.
    let state = 7;
    const random = () => ((state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 31 - 1);
    const vector = () => {
      const vector = Float32Array.from({ length: dimensions }, random);
      const norm = Math.hypot(...vector);
      return vector.map((x) => x / norm);
    };
    const index = await Index.create({ dimensions, precision });
    for (let at = 0; at < rows; at += 5000) await index.add(Array.from({ length: 5000 }, (_, row) => ({ id: at + row, vector: vector() })));
    const times = [];
    for (let query = 0; query < 40; query++) {
      const asked = vector();
      const start = performance.now();
      await index.search(asked, { k: 10 });
      times.push(performance.now() - start);
    }
    index.dispose();
    return times.slice(5).sort((a, b) => a - b);
  }, [precision, Number(options.rows)]);
  console.log(`${precision}: median ${times[times.length >> 1].toFixed(1)} ms, fastest ${times[0].toFixed(1)} ms, slowest ${times.at(-1).toFixed(1)} ms a query among ${options.rows} x 384`);
}
await browser.close();
server.close();
