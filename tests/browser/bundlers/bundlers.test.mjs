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
  withPage({ site: join(KILN_BUNDLERS, name, FOLDERS[name]), args: ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"] }, (begun) => {
    ({ server, page } = begun);
    problems = [];
    page.on("pageerror", (error) => problems.push(`thrown: ${error}`));
    page.on("console", (message) => ["error", "warning"].includes(message.type()) && problems.push(message.text()));
  });

  const without404 = () => problems.filter((problem) => !/favicon/.test(problem) && !/404/.test(problem));
  const hits = () => page.locator("#hits li").allTextContents();

  test(`${name}: the built page finds by meaning, in a worker`, async () => {
    await page.goto(`${server.url}/index.html`);
    await page.getByText(/computed on cpu \(wasm, relaxed SIMD\)/).waitFor({ timeout: 60_000 });
    assert.match((await hits())[0], /Bread keeps longest/);
    await page.locator("#query").fill("why does the sea rise and fall");
    await page.locator("#hits li:first-child").getByText("The moon raises").waitFor();
    assert.ok(page.workers().length > 0);
    assert.deepEqual(without404(), []);
  });

  test(`${name}: the built page has the add-on for WebGPU`, async () => {
    await page.goto(`${server.url}/index.html?device=webgpu`);
    await page.getByText(/computed on webgpu \(/).waitFor({ timeout: 120_000 });
    await page.locator("#hits li:first-child").getByText("Bread keeps longest").waitFor({ timeout: 60_000 });
    assert.deepEqual(without404(), []);
  });

  test(`${name}: the built page teaches by the add-on`, { skip: name !== "vite" && "Vite's example shows it" }, async () => {
    await page.goto(`${server.url}/index.html`);
    await page.getByText(/computed on/).waitFor({ timeout: 60_000 });
    const last = page.locator("#hits li").nth(2);
    const text = (await last.textContent()).replace(/^\S+ /, "");
    await last.getByRole("button").click();
    await page.getByText(/learned, and computed on cpu/).waitFor({ timeout: 120_000 });
    assert.ok((await hits())[0].endsWith(text), (await hits())[0]);
    assert.deepEqual(without404(), []);
  });
}
