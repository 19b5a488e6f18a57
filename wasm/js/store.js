// Saved indexes, in IndexedDB.

const DATABASE = "kiln-embed";
const STORE = "indexes";

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function withStore(mode, use) {
  if (!globalThis.indexedDB) throw new Error("this browser keeps no indexes here: it has no IndexedDB");
  const opening = indexedDB.open(DATABASE, 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
  const database = await done(opening);
  try {
    const transaction = database.transaction(STORE, mode);
    const finished = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
    // Where the request fails already nobody waits for this.
    finished.catch(() => {});
    const result = await done(use(transaction.objectStore(STORE)));
    await finished;
    return result;
  } catch (error) {
    if (error?.name === "QuotaExceededError") {
      throw new Error("the browser's storage for this site is full; delete saved indexes, or use a smaller precision", { cause: error });
    }
    throw error;
  } finally {
    database.close();
  }
}

export const save = (name, value) => withStore("readwrite", (store) => store.put(value, name));
export const load = (name) => withStore("readonly", (store) => store.get(name));
export const remove = (name) => withStore("readwrite", (store) => store.delete(name));
export const names = () => withStore("readonly", (store) => store.getAllKeys());
