//! What a block is computed with on a device, against the CPU: dropout, heads apart and together, and matrices in a larger
//! one.

use burn::backend::Flex;
use burn::tensor::{FloatDType, Tensor, TensorData};
use kiln_embed::kernels::{DropoutMask, Heads, Kernels, Place};

/// What drops out is the same on every device, by one mask and by several of one input.
fn dropout_is_that_of_the_cpu<D: Kernels>(device: D::Device) {
    fn back<T: Kernels>(shape: [usize; 2], masks: &[DropoutMask], device: &T::Device) -> Vec<f32> {
        let sum = numbers::<T, 2>(shape, 1.0, device);
        let x = numbers::<T, 2>([shape[0], masks.len() * shape[1]], 2.0, device);
        values(T::add_dropped(sum, x, masks))
    }
    for (shape, seed) in [([1, 1], 1), ([3, 5], u64::MAX), ([40, 300], 0x0123_4567_89ab_cdef)] {
        let mask = DropoutMask { seed, kept: 0.7 };
        let count = shape[0] * shape[1];
        let each: Vec<f32> = (0..count).map(|i| i as f32 - 7.0).collect();
        let data = TensorData::new(each, shape);
        let masks = [mask, DropoutMask { seed: seed / 3, kept: 0.4 }, mask];
        for masks in [&masks[..1], &masks[..]] {
            let dropped = D::drop_out(Tensor::from_data(data.clone(), &device), masks);
            let cpu = Default::default();
            let expected = Flex::drop_out(Tensor::from_data(data.clone(), &cpu), masks);
            assert_eq!(dropped.dims(), [shape[0], masks.len() * shape[1]]);
            let (dropped, expected) = (values(dropped), values(expected));
            let zeros = expected.iter().filter(|value| **value == 0.0).count();
            let share = if masks.len() == 1 { 0.3 } else { 0.4 };
            let share = share - zeros as f64 / expected.len() as f64;
            assert!(count < 100 || share.abs() < 0.02, "{zeros}");
            assert_eq!(dropped, expected, "{shape:?}");
            for (x, y) in
                back::<D>(shape, masks, &device).into_iter().zip(back::<Flex>(shape, masks, &cpu))
            {
                assert!((x - y).abs() < 1e-5, "{x} {y}, {shape:?}, {} masks", masks.len());
            }
        }
    }
}

/// Of the size, with numbers that look drawn.
fn numbers<T: Kernels, const D: usize>(
    shape: [usize; D],
    seed: f32,
    device: &T::Device,
) -> Tensor<T, D> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.731 + seed).sin()).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn values<T: Kernels, const D: usize>(x: Tensor<T, D>) -> Vec<f32> {
    x.into_data().to_vec().unwrap()
}

/// Queries, keys and values are taken apart and put together as on the CPU, rotated or not.
fn sides_are_those_of_the_cpu<D: Kernels>(device: D::Device) {
    fn of<T: Kernels>(rotates: bool, device: &T::Device) -> Vec<Vec<f32>> {
        let (batch, seq, heads) = (2, 5, Heads { queries: 4, keys: 2, width: 6 });
        let x = numbers::<T, 2>([batch * seq, heads.row()], 1.0, device);
        let table = |seed| numbers::<T, 4>([1, 1, seq, heads.width], seed, device);
        let angles = rotates.then(|| (table(2.0), table(3.0)));
        let (angles, dtype) = (angles.as_ref(), FloatDType::F32);
        let sides = T::split_sides(x, [batch, seq], heads, angles, dtype);
        let [query, key, value] = sides.clone();
        assert_eq!(query.dims(), [batch, 4, seq, 6]);
        assert_eq!([key.dims(), value.dims()], [[batch, 2, seq, 6]; 2]);
        let joined = T::join_sides(sides, angles, dtype);
        assert_eq!(joined.dims(), [batch * seq, heads.row()]);
        vec![values(query), values(key), values(value), values(joined)]
    }
    for rotates in [false, true] {
        let expected = of::<Flex>(rotates, &Default::default()).concat();
        for (x, y) in expected.into_iter().zip(of::<D>(rotates, &device).concat()) {
            assert!((x - y).abs() < 1e-5, "{x} {y}, rotated: {rotates}");
        }
    }
}

/// Matrices are put into a larger one and taken out of it as on the CPU: as many as a kernel takes, fewer and more.
fn matrices_are_placed_as_on_the_cpu<D: Kernels>(device: D::Device) {
    fn of<T: Kernels>(count: usize, device: &T::Device) -> [Vec<f32>; 2] {
        let all = [
            Place { first: [0, 0], extent: [3, 4], factor: 1.0 },
            Place { first: [3, 5], extent: [2, 7], factor: 0.5 },
            Place { first: [5, 12], extent: [4, 4], factor: 2.0 },
            Place { first: [0, 4], extent: [3, 1], factor: 0.25 },
        ];
        let places = &all[..count];
        let parts = places.iter().map(|place| numbers::<T, 2>(place.extent, 1.0, device));
        let y = T::placed(parts.collect(), places, [10, 16], FloatDType::F32);
        assert_eq!(y.dims(), [10, 16]);
        let taken = T::taken(y.clone(), places);
        assert!(taken.iter().map(Tensor::dims).eq(places.iter().map(|place| place.extent)));
        [values(y), taken.into_iter().flat_map(values).collect()]
    }
    for count in 1..=4 {
        let [placed, taken] = of::<D>(count, &device);
        let size = [12, 14, 16, 3][..count].iter().sum::<usize>();
        assert_eq!((placed.iter().filter(|x| **x != 0.0).count(), taken.len()), (size, size));
        assert_eq!([placed, taken], of::<Flex>(count, &Default::default()), "{count}");
    }
}

kiln_tests::on_every_device!(
    dropout_is_that_of_the_cpu,
    sides_are_those_of_the_cpu,
    matrices_are_placed_as_on_the_cpu
);
