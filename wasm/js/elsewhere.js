// Workers where the package is of another site than the page, as from a CDN: they have to be of the page's own.

/** A worker of the page's own that does nothing but import the package's, by its file; undefined where that is the page's too. */
export function workerFromElsewhere(file, options) {
  const { protocol, origin } = new URL(import.meta.url);
  if (!/^https?:$/.test(protocol) || origin === globalThis.location?.origin) return undefined;
  const far = import.meta.url.replace(/[^/]*$/, file);
  const near = URL.createObjectURL(new Blob([`import ${JSON.stringify(far)};`], { type: "text/javascript" }));
  const worker = new Worker(near, options);
  // It has to be there until the worker has begun.
  setTimeout(() => URL.revokeObjectURL(near), 60_000);
  return worker;
}
