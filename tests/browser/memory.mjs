import { readFileSync } from "node:fs";

/** A function that tells the memory of the browser's page processes, in megabytes; a text that says why it cannot be read. */
export async function pageMemory(browser) {
  const session = await browser.newBrowserCDPSession();
  const resident = async () => {
    const { processInfo } = await session.send("SystemInfo.getProcessInfo");
    const pages = processInfo.filter(({ type }) => type === "renderer");
    return pages.map(({ id }) => (Number(readFileSync(`/proc/${id}/statm`, "utf8").split(" ")[1]) * 4096) / 1e6).reduce((sum, one) => sum + one, 0);
  };
  try {
    await resident();
    return resident;
  } catch (error) {
    return `memory of processes cannot be read here: ${error.message}`;
  }
}
