// The examples of wasm/examples, built by tests/bundlers.sh, in Chromium.

import assert from "node:assert/strict";
import { test } from "node:test";
import { join } from "node:path";
import { withPage } from "../browser.mjs";

const { KILN_BUILT, KILN_BUNDLERS } = process.env;
const FOLDERS = { vite: "dist", webpack: ".", next: "out", astro: "dist" };

for (const name of KILN_BUILT.split(" ")) {
  let server, page, problems;
  // Each at the root of its site, as it is built for.
  withPage({ site: join(KILN_BUNDLERS, name, FOLDERS[name]) }, (begun) => {
    ({ server, page } = begun);
    problems = [];
    page.on("pageerror", (error) => problems.push(`thrown: ${error}`));
    page.on("console", (message) => ["error", "warning"].includes(message.type()) && problems.push(message.text()));
  });

  test(`${name}: the built page finds by meaning, in a worker`, async () => {
    await page.goto(`${server.url}/index.html`);
    await page.getByText(/computed on cpu \(wasm, relaxed SIMD\)/).waitFor({ timeout: 60_000 });
    const hits = () => page.locator("#hits li").allTextContents();
    assert.match((await hits())[0], /Bread keeps longest/);
    await page.locator("#query").fill("why does the sea rise and fall");
    await page.locator("#hits li:first-child").getByText("The moon raises").waitFor();
    assert.ok(page.workers().length > 0);
    assert.deepEqual(problems.filter((problem) => !/favicon/.test(problem) && !/404/.test(problem)), []);
  });
}
