// Keeps the page itself, so that it opens without a network: the newest from the server where it answers,
// else what was kept. The model is kept by kiln-embed.

const KEPT = "kiln-demo";

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  const isPage = origin === self.location.origin && /(\/|\.(html|css|js|svg|wasm))$/.test(pathname);
  if (request.method !== "GET" || !isPage) return;
  const answer = async () => {
    const cache = await caches.open(KEPT);
    try {
      const response = await fetch(request);
      if (response.ok) await cache.put(request, response.clone());
      return response;
    } catch (error) {
      const kept = await cache.match(request);
      if (kept) return kept;
      throw error;
    }
  };
  event.respondWith(answer());
});
