import * as kiln from "/pkg/index.js";
window.kiln = kiln;
