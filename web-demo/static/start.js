import init from "./demo.js";

init().catch((error) => {
  const line = document.getElementById("waiting") ?? document.body.appendChild(document.createElement("p"));
  line.textContent = `The page could not be started: ${error.message}. It needs a browser with WebAssembly SIMD (all current ones).`;
});

// Where pages cannot keep themselves, as in private windows, this one works with a network only. README.md says what isolation is for.
const worker = "isolated" in document.documentElement.dataset ? "sw.js?isolated" : "sw.js";
navigator.serviceWorker?.register(worker).catch(() => {});
