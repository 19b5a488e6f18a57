// Chromium with a server, and a page of its own for each test, or one for all of a file.

import { after, afterEach, before, beforeEach } from "node:test";
import { readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join, relative } from "node:path";
import { serve } from "./server.mjs";

const { KILN_PLAYWRIGHT, KILN_CHROMIUM } = process.env;
const { chromium } = createRequire(KILN_PLAYWRIGHT + "/")("playwright-core");

/**
 * Calls `begin` with `{ browser, server, context, page }` before each of a file's tests, or `once` before all of them. `roots`,
 * or `site`, and what else `serve` takes, more `args` for Chromium, and options for the page's `context`.
 */
export function withPage({ roots = {}, site, isolated, csp, args = [], context: options = {}, once = false }, begin) {
  let browser, server, context;
  const open = async () => {
    context = await browser.newContext(options);
    await begin({ browser, server, context, page: await context.newPage() });
  };
  before(async () => {
    browser = await chromium.launch({ executablePath: KILN_CHROMIUM, args: ["--no-sandbox", "--disable-background-networking", ...args] });
    server = await serve(roots, { site, isolated, csp });
    if (once) await open();
  });
  after(async () => {
    await browser?.close();
    server?.close();
  });
  if (!once) beforeEach(open);
  afterEach(async () => {
    server.mend();
    if (!once) await context.close();
  });
}

/** Opens the page that has kiln-embed as `window.kiln`. */
export async function openKiln(page, server) {
  await page.goto(`${server.url}/page/page.html`);
  await page.waitForFunction(() => window.kiln);
}

/** The paths of all files in a folder. */
export const filesIn = (folder) =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => relative(folder, join(parentPath, name)));
