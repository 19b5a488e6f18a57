/** Cosine of two vectors. */
export function cosine(a, b) {
  if (a.length !== b.length) throw new RangeError(`vectors of ${a.length} and ${b.length} dimensions have no cosine`);
  let dot = 0;
  let aa = 0;
  let bb = 0;
  for (let at = 0; at < a.length; at++) {
    dot += a[at] * b[at];
    aa += a[at] * a[at];
    bb += b[at] * b[at];
  }
  return aa > 0 && bb > 0 ? dot / Math.sqrt(aa * bb) : 0;
}
