// Saved indexes, each a file in a folder: what it holds, and its name, as v8 writes what can be cloned.

import { createHash } from "node:crypto";
import { readFile, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { deserialize, serialize } from "node:v8";
import { dataFolder, writeWhole } from "./folders.js";

const SUFFIX = ".index";

const folder = () => join(dataFolder(), "indexes");
const pathOf = (name) => join(folder(), createHash("sha256").update(name).digest("hex") + SUFFIX);

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
    throw new Error(`${path} is no saved index: ${error.message}`, { cause: error });
  }
}

export const save = (name, value) => writeWhole(pathOf(name), [serialize({ name, value })]);

export const load = async (name) => (await read(pathOf(name)))?.value;

export const remove = (name) => rm(pathOf(name), { force: true });

export async function names() {
  const files = await readdir(folder()).catch((error) => {
    if (error.code === "ENOENT") return [];
    throw error;
  });
  const saved = await Promise.all(files.filter((file) => file.endsWith(SUFFIX)).map((file) => read(join(folder(), file))));
  return saved.flatMap((one) => (one ? [one.name] : [])).sort();
}
