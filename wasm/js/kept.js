// What is kept of downloads, in Cache Storage, with sums that say whether it still is what came.

import { folderAddress } from "./names.js";
import { platform } from "./platform.js";

/** Name of the cache; a later layout gets a later number. */
const CACHE = "kiln-embed-1";
/** Header of what is kept of a file that is not there. */
const ABSENT = "x-kiln-absent";
/** Header: the server's name for this version of the file. */
const VERSION = "x-kiln-version";
/** Header: how many bytes the whole file has, as the server says, of the part of one. */
const TOTAL = "x-kiln-total";
/** Header: SHA-256 of the bytes. */
const SUM = "x-kiln-sum";

/** Where the bytes of a download that broke off are kept. */
export const partOf = (url) => `${url}${url.includes("?") ? "&" : "?"}kiln-embed-part`;

/** Forgets downloaded models: one by its address, or all. */
export async function clearCache(url) {
  if (url === undefined) {
    await platform.deleteCache(CACHE);
    return;
  }
  const cache = await platform.openCache(CACHE);
  if (!cache) return;
  const address = platform.address(url);
  address.hash = "";
  const root = folderAddress(address);
  const lies = (url) => url.origin === root.origin && url.pathname.startsWith(root.pathname);
  const requests = await cache.keys();
  // A folder's files lie under its address.
  const mine = requests.filter(({ url }) => [address.href, partOf(address.href)].includes(url) || lies(new URL(url)));
  await Promise.all(mine.map(({ url }) => cache.delete(url)));
}

export async function sumOf(bytes) {
  const sum = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(sum, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Files whose keeping failed, which is said once. */
const said = new Set();

export class Kept {
  #cache;
  /** Whether something could not be kept; then the rest of the model is not tried. */
  #full = false;

  constructor(cache) {
    this.#cache = cache;
  }

  /** The store; undefined where there is none. */
  static async open() {
    try {
      const cache = crypto.subtle && (await platform.openCache(CACHE));
      return cache && new Kept(cache);
    } catch {
      return undefined; // Not a secure context, or storage is switched off.
    }
  }

  /** What is kept of an address: `{ bytes, version, total }`, or `{ absent: true }`. Damaged bytes are forgotten. */
  async get(url) {
    try {
      const kept = await this.#cache.match(url);
      if (!kept) return undefined;
      if (kept.headers.has(ABSENT)) return { absent: true };
      const bytes = new Uint8Array(await kept.arrayBuffer());
      if ((await sumOf(bytes)) === kept.headers.get(SUM)) {
        const total = kept.headers.get(TOTAL);
        return { bytes, version: kept.headers.get(VERSION), total: total === null ? undefined : Number(total) };
      }
    } catch {
      // What cannot be read is as if it were not kept.
    }
    await this.forget(url);
    return undefined;
  }

  /** Keeps bytes for the next time, or that there are none; a full store is no reason to fail. */
  async put(url, bytes, { version, total } = {}) {
    if (this.#full) return;
    const headers = { "content-type": "application/octet-stream" };
    if (version) headers[VERSION] = version;
    if (total !== undefined) headers[TOTAL] = String(total);
    try {
      headers[bytes ? SUM : ABSENT] = bytes ? await sumOf(bytes) : "1";
      await this.#cache.put(url, new Response(bytes ?? null, { headers }));
    } catch (error) {
      this.#full = true;
      if (!said.has(url)) console.warn(`kiln-embed: ${url} is not kept for the next time: ${error.message}`);
      said.add(url);
    }
  }

  async forget(url) {
    await this.#cache.delete(url).catch(() => {});
  }
}
