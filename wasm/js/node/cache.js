// Downloads in a folder, with what kept.js uses of Cache Storage: a file for each address, which begins with a line
// of JSON, its address and headers, and goes on with its bytes.

import { createHash } from "node:crypto";
import { open, readFile, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { cacheFolder, writeWhole } from "./folders.js";

/** Bytes of a first line at most. */
const LONGEST_HEAD = 2 ** 16;

const SUFFIX = ".kept";

const folderOf = (name) => join(cacheFolder(), name);

const missing = (error) => {
  if (error.code === "ENOENT") return undefined;
  throw error;
};

export const openFolderCache = async (name) => new FolderCache(folderOf(name));

export const deleteFolderCache = (name) => rm(folderOf(name), { recursive: true, force: true });

class FolderCache {
  #folder;

  constructor(folder) {
    this.#folder = folder;
  }

  #path(url) {
    return join(this.#folder, createHash("sha256").update(url).digest("hex") + SUFFIX);
  }

  async match(url) {
    const bytes = await readFile(this.#path(url)).catch(missing);
    if (!bytes) return undefined;
    const end = bytes.indexOf("\n");
    const head = JSON.parse(bytes.toString("utf8", 0, end));
    // As if it were not there: names are sums, and another address has another.
    if (head.url !== url) return undefined;
    return new Response(bytes.subarray(end + 1), { headers: head.headers });
  }

  async put(url, response) {
    const head = JSON.stringify({ url, headers: Object.fromEntries(response.headers) });
    await writeWhole(this.#path(url), [`${head}\n`, new Uint8Array(await response.arrayBuffer())]);
  }

  async delete(url) {
    await rm(this.#path(url), { force: true });
  }

  /** `{ url }` of all that is kept. */
  async keys() {
    const names = (await readdir(this.#folder).catch(missing)) ?? [];
    const heads = await Promise.all(names.filter((name) => name.endsWith(SUFFIX)).map((name) => headOf(join(this.#folder, name))));
    return heads.filter(Boolean).map(({ url }) => ({ url }));
  }
}

/** The first line of a kept file; undefined where it has none. */
async function headOf(path) {
  const file = await open(path).catch(missing);
  if (!file) return undefined;
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(LONGEST_HEAD), 0, LONGEST_HEAD, 0);
    return JSON.parse(buffer.toString("utf8", 0, buffer.subarray(0, bytesRead).indexOf("\n")));
  } catch {
    return undefined;
  } finally {
    await file.close();
  }
}
