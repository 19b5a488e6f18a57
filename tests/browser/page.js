import * as kiln from "/pkg/index.js";
import training from "/pkg-train/index.js";
import webgpu from "/pkg-webgpu/index.js";
Object.assign(window, { kiln, training, webgpu });

/** A folder of the server's as one that was dropped: its files by their paths inside. */
window.dropped = (url, paths) =>
  Promise.all(
    paths.map(async (path) => {
      const file = new File([await (await fetch(`${url}/${path}`)).blob()], path.split("/").at(-1));
      return Object.defineProperty(file, "webkitRelativePath", { value: `folder/${path}` });
    }),
  );

/** What a module worker of the page's own computes by kiln-embed. */
window.inOwnWorker = async (given) => {
  const worker = new Worker("/page/own-worker.js", { type: "module" });
  try {
    return await new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = ({ message }) => reject(new Error(message || "the worker could not be loaded"));
      worker.postMessage(given);
    });
  } finally {
    worker.terminate();
  }
};
