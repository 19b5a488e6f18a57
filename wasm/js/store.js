// Saved indexes, and states of training, in IndexedDB.

const DATABASE = "kiln-embed";
const STORES = ["indexes", "states"];

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function withStore(name, mode, use) {
  if (!globalThis.indexedDB) throw new Error(`this browser keeps no ${name} here: it has no IndexedDB`);
  const opening = indexedDB.open(DATABASE, 2);
  opening.onupgradeneeded = () => {
    const { result } = opening;
    for (const store of STORES) if (!result.objectStoreNames.contains(store)) result.createObjectStore(store);
  };
  const database = await done(opening);
  try {
    const transaction = database.transaction(name, mode);
    const finished = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
    // Where the request fails already nobody waits for this.
    finished.catch(() => {});
    const result = await done(use(transaction.objectStore(name)));
    await finished;
    return result;
  } catch (error) {
    if (error?.name === "QuotaExceededError") {
      throw new Error("the browser's storage for this site is full; delete saved indexes or states of training, or use indexes of a smaller precision", { cause: error });
    }
    throw error;
  } finally {
    database.close();
  }
}

/** What is kept by name in a store. */
const kept = (store) => ({
  save: (name, value) => withStore(store, "readwrite", (store) => store.put(value, name)),
  load: (name) => withStore(store, "readonly", (store) => store.get(name)),
  remove: (name) => withStore(store, "readwrite", (store) => store.delete(name)),
  names: () => withStore(store, "readonly", (store) => store.getAllKeys()),
});

export const indexes = kept("indexes");
export const states = kept("states");
