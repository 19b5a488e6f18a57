import type { Training } from "kiln-embed";

/** The builds that train, for `model.trainer({ training })`. */
declare const training: Training;
export default training;
