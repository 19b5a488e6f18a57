// Saved indexes and states of training, each a file in a folder: what it holds, and its name, as v8 writes what can be
// cloned.

import { createHash } from "node:crypto";
import { readFile, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { deserialize, serialize } from "node:v8";
import { dataFolder, writeWhole } from "./folders.js";

/** What is kept by name in a folder, in files of their own ending; `what` is what one is called. */
function kept(name, suffix, what) {
  const folder = () => join(dataFolder(), name);
  const pathOf = (name) => join(folder(), createHash("sha256").update(name).digest("hex") + suffix);

  async function read(path) {
    let bytes;
    try {
      bytes = await readFile(path);
    } catch (error) {
      if (error.code === "ENOENT") return undefined;
      throw error;
    }
    try {
      return deserialize(bytes);
    } catch (error) {
      throw new Error(`${path} is no ${what}: ${error.message}`, { cause: error });
    }
  }

  return {
    save: (name, value) => writeWhole(pathOf(name), [serialize({ name, value })]),
    load: async (name) => (await read(pathOf(name)))?.value,
    remove: (name) => rm(pathOf(name), { force: true }),
    async names() {
      const files = await readdir(folder()).catch((error) => {
        if (error.code === "ENOENT") return [];
        throw error;
      });
      const saved = await Promise.all(files.filter((file) => file.endsWith(suffix)).map((file) => read(join(folder(), file))));
      return saved.flatMap((one) => (one ? [one.name] : [])).sort();
    },
  };
}

export const indexes = kept("indexes", ".index", "saved index");
export const states = kept("states", ".state", "state of training");
