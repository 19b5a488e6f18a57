// Where a model is, and where the files are that its own files name.

import { shown } from "./checks.js";
import { platform } from "./platform.js";

/** What no such name has: other separators, a scheme, what ends a path, escapes that a server may undo, and control characters or halves of characters. */
const FORBIDDEN = /[\\:?#%\p{Cc}\p{Cs}]/u;

/** The address of a source; a model's folder, or a file. */
export function sourceAddress(source) {
  if (typeof source !== "string" && !(source instanceof URL)) {
    throw new TypeError(`the source is ${shown(source)}; give an address, a File or several, or the bytes of a .kiln file`);
  }
  let url;
  try {
    url = platform.address(source);
  } catch {
    throw new TypeError(`${shown(String(source))} is no address`);
  }
  if (!url.pathname.startsWith("/")) throw new TypeError(`${shown(String(source))} is no address that files lie under; give a File or bytes`);
  url.hash = "";
  return url;
}

/** The address of a folder. */
export function folderAddress(address) {
  const url = new URL(address);
  if (!url.pathname.endsWith("/")) url.pathname += "/";
  return url;
}

/**
 * The address of a file inside a folder, by the name that `where` gives it. What leads anywhere else is
 * refused; the question of the folder's address is asked of each file.
 */
export function fileAddress(name, root, where) {
  const refuse = () => {
    throw new Error(`${where} names ${shown(name)}, which is no path inside the model`);
  };
  if (typeof name !== "string" || FORBIDDEN.test(name)) refuse();
  const parts = name.split("/");
  if (parts.some((part) => part === "" || part === "." || part === "..")) refuse();
  const url = new URL(parts.map(encodeURIComponent).join("/"), root);
  url.search = root.search;
  if (url.protocol !== root.protocol || url.host !== root.host || !url.pathname.startsWith(root.pathname)) refuse();
  return url.href;
}
