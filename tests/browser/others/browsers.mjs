// Firefox by puppeteer-core, and WebKitGTK by its own WebDriver, behind the few things that the tests ask of a page.
// Each is undefined, and says why, where it cannot be had.

import { spawn } from "node:child_process";
import { existsSync, globSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { delimiter, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const { KILN_BROWSERS, PATH } = process.env;
const load = createRequire(KILN_BROWSERS + "/");
const found = (name) => PATH.split(delimiter).map((folder) => join(folder, name)).find((path) => existsSync(path));
const hint = "tests/setup.sh browsers installs it";

/** Milliseconds that a page may take for what it is asked. */
const PATIENCE = 120_000;

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/**
 * A browser `{ page, close }`. A page has `open(address)`, `run(function, ...arguments)`, which gives what the function
 * resolves to in the page, and `close`.
 */
const firefox = {
  missing: found("firefox-esr") ? undefined : `no firefox-esr here; ${hint}`,
  async start({ isPrivate = false } = {}) {
    const puppeteer = load("puppeteer-core");
    const extraPrefsFirefox = { "browser.privatebrowsing.autostart": isPrivate };
    const browser = await puppeteer.launch({ browser: "firefox", executablePath: found("firefox-esr"), headless: true, protocolTimeout: PATIENCE, extraPrefsFirefox });
    return {
      async page() {
        const page = await browser.newPage();
        return { open: (address) => page.goto(address), run: (wanted, ...given) => page.evaluate(wanted, ...given), close: () => page.close() };
      },
      close: () => browser.close(),
    };
  },
};

const miniBrowser = globSync("/usr/lib/*/webkit2gtk-4.*/MiniBrowser").sort().at(-1);
const webkit = {
  missing: found("WebKitWebDriver") && found("Xvfb") && miniBrowser ? undefined : `no WebKitWebDriver, Xvfb or MiniBrowser here; ${hint}`,
  async start({ isPrivate = false } = {}) {
    const { Builder, Capabilities } = load("selenium-webdriver");
    // Xvfb picks a free display itself, and says which.
    const screen = spawn(found("Xvfb"), ["-displayfd", "3", "-screen", "0", "1280x1024x24", "-nolisten", "tcp"], { stdio: ["ignore", "ignore", "ignore", "pipe"] });
    const display = await new Promise((resolve, reject) => {
      screen.stdio[3].once("data", (data) => resolve(`:${String(data).trim()}`));
      screen.once("exit", (code) => reject(new Error(`Xvfb ended with ${code}`)));
    });
    const port = await freePort();
    // As root its sandbox does not start.
    const env = { ...process.env, DISPLAY: display, ...(process.getuid?.() === 0 && { WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS: "1" }) };
    const server = spawn(found("WebKitWebDriver"), [`--port=${port}`], { env, stdio: "ignore" });
    const url = `http://127.0.0.1:${port}`;
    const end = () => [server, screen].forEach((child) => child.kill());
    try {
      for (let waited = 0; ; waited++) {
        if (await fetch(`${url}/status`).then(() => true, () => false)) break;
        if (waited === 100) throw new Error("WebKitWebDriver does not answer");
        await sleep(100);
      }
      const args = ["--automation", ...(isPrivate ? ["--private"] : [])];
      const wanted = new Capabilities().setBrowserName("MiniBrowser").set("webkitgtk:browserOptions", { binary: miniBrowser, args });
      const driver = await new Builder().usingServer(url).withCapabilities(wanted).build();
      await driver.manage().setTimeouts({ script: PATIENCE, pageLoad: PATIENCE });
      const run = async (asked, ...given) => {
        const script = `const [given, done] = arguments;
          Promise.resolve().then(() => (${asked})(...given)).then((value) => done({ value }), (error) => done({ error: \`\${error.name}: \${error.message}\` }));`;
        const { value, error } = await driver.executeAsyncScript(script, given);
        if (error) throw new Error(error);
        return value ?? undefined;
      };
      return {
        page: async () => ({ open: (address) => driver.get(address), run, close: async () => driver.get("about:blank") }),
        async close() {
          await driver.quit().catch(() => {});
          end();
        },
      };
    } catch (error) {
      end();
      throw error;
    }
  },
};

export const browsers = { Firefox: firefox, WebKit: webkit };
