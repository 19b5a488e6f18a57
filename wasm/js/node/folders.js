// Where this user's programs keep things, and files there that are written whole or not at all.

import { randomUUID } from "node:crypto";
import { mkdir, open, readdir, rename, rm, stat } from "node:fs/promises";
import { homedir } from "node:os";
import { dirname, isAbsolute, join } from "node:path";

/** A folder by the variables that name it, the first that is set to an absolute path; else one below the home folder. */
function folder(variables, usual) {
  const named = variables.map((name) => process.env[name]).find((path) => path && isAbsolute(path));
  return join(named ?? join(homedir(), ...usual), "kiln-embed");
}

const { platform } = process;

/** What can be fetched again. */
export const cacheFolder = () =>
  folder(["XDG_CACHE_HOME", ...(platform === "win32" ? ["LOCALAPPDATA"] : [])], platform === "darwin" ? ["Library", "Caches"] : [".cache"]);

/** What cannot. */
export const dataFolder = () =>
  folder(["XDG_DATA_HOME", ...(platform === "win32" ? ["LOCALAPPDATA"] : [])], platform === "darwin" ? ["Library", "Application Support"] : [".local", "share"]);

const DRAFT = ".part";
/** Milliseconds that nobody writes on a draft for: who began it was killed. */
const ABANDONED = 3600_000;

/** Removes drafts that nobody will finish. */
async function sweep(folder) {
  for (const name of await readdir(folder)) {
    if (!name.endsWith(DRAFT)) continue;
    const path = join(folder, name);
    const { mtimeMs } = await stat(path).catch(() => ({ mtimeMs: Infinity }));
    if (Date.now() - mtimeMs > ABANDONED) await rm(path, { force: true });
  }
}

/** Writes a file's parts one after another; only when the disk has all of them they take the file's place. */
export async function writeWhole(path, parts) {
  await mkdir(dirname(path), { recursive: true });
  const draft = `${path}.${randomUUID()}${DRAFT}`;
  try {
    const file = await open(draft, "wx");
    try {
      for (const part of parts) await file.writeFile(part);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(draft, path);
    await sweep(dirname(path));
  } catch (error) {
    await rm(draft, { force: true });
    throw error;
  }
}
