// Add-ons: packages of builds that only some need. Who needs one imports it and hands it over, so that bundlers and workers
// find its files.

import { shown } from "./checks.js";
import { platform } from "./platform.js";

/** This package's version; an add-on of another may have another core. */
export const VERSION = "0.1.0";

/** By the option that takes it: an add-on's package, and its builds. */
const ADD_ONS = {
  webgpu: { name: "kiln-embed-webgpu", builds: ["webgpu"] },
  training: { name: "kiln-embed-train", builds: ["train", "train-threads"] },
};

/** Where the files of an add-on's builds are, `{ js, wasm }` by the build's name; undefined where none is handed over. */
export function addOn(option, value) {
  if (value === undefined || value === null) return undefined;
  const { name, builds } = ADD_ONS[option];
  const refuse = (what) => {
    throw new TypeError(`${option} is ${what}, not the default export of ${name}; import ${option} from "${name}"`);
  };
  if (value.package !== name) refuse(shown(value.package ?? value));
  if (value.version !== VERSION) {
    throw new RangeError(`${option} is ${name} ${shown(value.version)}, and this is kiln-embed ${VERSION}; install ${name}@${VERSION}`);
  }
  return Object.fromEntries(
    builds.map((build) => {
      const { js, wasm } = value.builds?.[build] ?? {};
      if (typeof js !== "string" || typeof wasm !== "string") refuse(`an object without the build ${build}`);
      return [build, { js: platform.address(js).href, wasm: platform.address(wasm).href }];
    }),
  );
}

/** Refuses what needs an add-on that is not handed over; where the runtime takes none it is refused for its own reason, later. */
export function needed(option, builds, who, how) {
  if (builds !== undefined || !platform.importModule) return;
  const { name } = ADD_ONS[option];
  throw new TypeError(`${who} needs the package ${name}; install it, import ${option} from "${name}", and call ${how}`);
}
