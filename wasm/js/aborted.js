/** An AbortError, as fetch throws it. */
export function aborted() {
  return new DOMException("the run was aborted", "AbortError");
}
