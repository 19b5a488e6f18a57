// Saved indexes and states of training, each a file in a folder: its name as a line of JSON, and what it holds as v8 writes
// what can be cloned. Earlier ones have both as v8 writes them.

import { createHash } from "node:crypto";
import { open, readFile, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { deserialize, serialize } from "node:v8";
import { dataFolder, writeWhole } from "./folders.js";

const missing = (error) => {
  if (error.code === "ENOENT") return undefined;
  throw error;
};

/** Bytes of a first line that are read to find a name. */
const USUAL_HEAD = 2 ** 16;

/** How a first line begins; no writing of v8's does. */
const HEAD = '{"name":';
const hasHead = (bytes) => bytes.toString("latin1", 0, HEAD.length) === HEAD;

/** What is kept by name in a folder, in files of their own ending; `what` is what one is called. */
function kept(name, suffix, what) {
  const folder = () => join(dataFolder(), name);
  const pathOf = (name) => join(folder(), createHash("sha256").update(name).digest("hex") + suffix);

  /** `{ name, value }` of a file. */
  async function read(path) {
    const bytes = await readFile(path).catch(missing);
    if (!bytes) return undefined;
    try {
      if (!hasHead(bytes)) return deserialize(bytes);
      const end = bytes.indexOf("\n");
      return { ...JSON.parse(bytes.toString("utf8", 0, end)), value: deserialize(bytes.subarray(end + 1)) };
    } catch (error) {
      throw new Error(`${path} is no ${what}: ${error.message}`, { cause: error });
    }
  }

  /** The name of a file; of most without what they hold, which may be large. */
  async function nameOf(path) {
    const file = await open(path);
    try {
      const { buffer, bytesRead } = await file.read(Buffer.alloc(USUAL_HEAD), 0, USUAL_HEAD, 0);
      const head = buffer.subarray(0, bytesRead);
      const end = head.indexOf("\n");
      return hasHead(head) && end >= 0 ? JSON.parse(head.toString("utf8", 0, end)).name : (await read(path)).name;
    } finally {
      await file.close();
    }
  }

  return {
    save: (name, value) => writeWhole(pathOf(name), [`${JSON.stringify({ name })}\n`, serialize(value)]),
    load: async (name) => (await read(pathOf(name)))?.value,
    remove: (name) => rm(pathOf(name), { force: true }),
    async names() {
      const files = (await readdir(folder()).catch(missing)) ?? [];
      const paths = files.filter((file) => file.endsWith(suffix)).map((file) => join(folder(), file));
      // One that is damaged, or goes meanwhile, hides no other.
      const names = await Promise.all(paths.map((path) => nameOf(path).catch(() => undefined)));
      return names.filter((name) => typeof name === "string").sort();
    },
  };
}

export const indexes = kept("indexes", ".index", "saved index");
export const states = kept("states", ".state", "state of training");
