//! Views: elements that do not follow one another in row-major order.

/// The elements of a view in row-major order. The bytes begin with its first element; strides count
/// elements, and none leads behind the last.
pub(in crate::checkpoint) fn gather(
    bytes: &[u8],
    size: usize,
    shape: &[usize],
    strides: &[usize],
) -> Vec<u8> {
    let count: usize = shape.iter().product();
    let mut elements = Vec::with_capacity(count * size);
    let mut place = vec![0; shape.len()];
    let mut at = 0;
    for _ in 0..count {
        elements.extend_from_slice(&bytes[at * size..][..size]);
        for (axis, position) in place.iter_mut().enumerate().rev() {
            *position += 1;
            at += strides[axis];
            if *position < shape[axis] {
                break;
            }
            at -= strides[axis] * shape[axis];
            *position = 0;
        }
    }
    elements
}

/// Whether elements follow one another in row-major order.
pub(super) fn is_row_major(shape: &[usize], strides: &[usize]) -> bool {
    let mut next = 1;
    shape.iter().zip(strides).rev().all(|(&n, &stride)| {
        let follows = n == 1 || stride == next;
        next *= n;
        follows
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_copied_in_row_major_order() {
        let bytes: Vec<u8> = (0..24).collect();
        assert_eq!(gather(&bytes, 1, &[2, 3], &[3, 1]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(gather(&bytes, 1, &[3, 2], &[1, 3]), [0, 3, 1, 4, 2, 5]);
        assert_eq!(gather(&bytes, 2, &[2, 2], &[1, 4]), [0, 1, 8, 9, 2, 3, 10, 11]);
        assert_eq!(gather(&bytes, 1, &[2, 2, 2], &[0, 12, 5]), [0, 5, 12, 17, 0, 5, 12, 17]);
        assert!(gather(&bytes, 1, &[2, 0], &[1, 1]).is_empty());
        assert_eq!(gather(&bytes, 4, &[], &[]), [0, 1, 2, 3]);
    }

    #[test]
    fn dimensions_of_one_have_any_stride() {
        assert!(is_row_major(&[2, 1, 3], &[3, 77, 1]));
        assert!(!is_row_major(&[3, 2], &[1, 3]));
        assert!(is_row_major(&[], &[]));
    }
}
