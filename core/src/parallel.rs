//! Work on all cores, unless the caller is one of many workers already: callers that run batches
//! side by side give each batch one core.

use rayon::prelude::*;

/// Whether there can be threads; in WebAssembly, only in the build with shared memory.
const THREADS: bool = cfg!(any(not(target_arch = "wasm32"), target_feature = "atomics"));

/// Number of cores on which [`each_part`] works here.
pub(crate) fn cores() -> usize {
    if !THREADS || rayon::current_thread_index().is_some() {
        return 1;
    }
    rayon::current_num_threads()
}

/// On how many cores [`try_map`] works here.
pub(crate) fn workers() -> usize {
    if THREADS { rayon::current_num_threads() } else { 1 }
}

/// What `work` makes of each item, in the items' order; items are worked on side by side, each by one core.
///
/// # Errors
/// One of those of `work`; items that were not begun by then never are.
pub(crate) fn try_map<T: Sync, R: Send, E: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, E> + Send + Sync,
) -> Result<Vec<R>, E> {
    if workers() == 1 {
        return items.iter().map(work).collect();
    }
    items.par_iter().with_max_len(1).map(work).collect()
}

/// What `work` makes of each item, in the items' order; side by side unless the caller is one of many
/// workers already.
#[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Send + Sync) -> Vec<R> {
    if cores() == 1 {
        return items.iter().map(work).collect();
    }
    items.par_iter().with_max_len(1).map(work).collect()
}

/// Calls `work` with each part of a slice and the part's number; all parts but the last have the
/// same size.
///
/// # Panics
/// With parts of size 0.
pub(crate) fn each_part<T: Send>(
    values: &mut [T],
    size: usize,
    work: impl Fn(usize, &mut [T]) + Send + Sync,
) {
    if values.len() > size && cores() > 1 {
        return values
            .par_chunks_mut(size)
            .enumerate()
            .for_each(|(number, part)| work(number, part));
    }
    values.chunks_mut(size).enumerate().for_each(|(number, part)| work(number, part));
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn parts_are_counted_from_the_front() {
        for length in [0, 1, 7, 8, 9] {
            let mut values = vec![0; length];
            each_part(&mut values, 4, |number, part| part.fill(number + 1));
            let expected: Vec<usize> = (0..length).map(|i| i / 4 + 1).collect();
            assert_eq!(values, expected);
        }
    }

    #[test]
    fn mapped_items_keep_their_order() {
        let items: Vec<usize> = (0..100).collect();
        let doubled = try_map(&items, |&i| Ok::<_, usize>(2 * i)).unwrap();
        assert_eq!(doubled, (0..100).map(|i| 2 * i).collect::<Vec<_>>());
        assert_eq!(try_map(&items, |&i| if i == 7 { Err(i) } else { Ok(i) }), Err(7));
    }

    #[test]
    #[cfg(not(target_arch = "wasm32"))]
    fn one_of_many_workers_works_alone() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        assert_eq!(pool.install(cores), 1);
        assert!(cores() >= 1);
    }
}
