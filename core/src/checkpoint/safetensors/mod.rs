//! Safetensors files.
//!
//! The `safetensors` crate parses and validates the header; added here are checks of every size in
//! it against the file's real length.

mod read;
mod write;

pub(super) use read::read_header;
pub use write::{StoredTensor, write_safetensors, write_tensors};

use safetensors::tensor::Dtype;

use crate::quant::Number;

/// Suffix of a quantized tensor's name that gives the name of its scales.
pub(super) const SCALES: &str = ".scales";
/// The entry of a file's metadata that says how its tensors are quantized: a JSON object from
/// names to schemes.
const QUANTIZED: &str = "kiln.quantized";

/// Dtype under which codes are stored.
pub(super) fn code_type(number: Number) -> Dtype {
    match number {
        Number::Int8 => Dtype::I8,
        // Two per byte.
        Number::Int4 => Dtype::U8,
        Number::Fp8E4M3 => Dtype::F8_E4M3,
        Number::Fp8E5M2 => Dtype::F8_E5M2,
    }
}

#[cfg(test)]
mod tests {
    use super::write::{Numbers, Writable, write};
    use super::*;
    use crate::checkpoint::{Files, Weights};
    use crate::quant::{Quantized, WeightPrecision};
    use proptest::prelude::*;

    fn folder(bytes: Vec<u8>) -> Files {
        Files([("model.safetensors".to_string(), bytes.into())].into())
    }

    fn sample() -> Vec<u8> {
        let tensor = ("w".to_string(), vec![2, 2], vec![1.0, -2.0, 3.5, 0.0]);
        write_safetensors(&[tensor], &[("format", "pt")]).unwrap()
    }

    #[test]
    fn reads_what_it_wrote() {
        let mut weights = Weights::open(&folder(sample()), "model").unwrap();
        assert_eq!(weights.tensors()["w"].shape, [2, 2]);
        assert_eq!(weights.read("w").unwrap().unwrap(), [1.0, -2.0, 3.5, 0.0]);
        assert_eq!(weights.read("v").unwrap(), None);
    }

    #[test]
    fn a_promised_terabyte_is_refused_before_it_is_allocated() {
        let mut bytes = 1_000_000_000_000u64.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        let error = Weights::open(&folder(bytes), "model").err().unwrap().to_string();
        assert!(error.contains("1000000000000"), "{error}");

        let header =
            br#"{"w":{"dtype":"F32","shape":[1000000,1000000],"data_offsets":[0,4000000000000]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        assert!(Weights::open(&folder(bytes), "model").is_err());
    }

    #[test]
    fn quantized_tensors_are_read_back() {
        let weights: Vec<f32> = (0..256).map(|i| (i as f32 * 0.3).sin()).collect();
        for scheme in ["int8:32", "int4:64", "int4:channel", "fp8-e4m3", "fp8-e5m2:32"] {
            let matrix = Quantized::round(&weights, [4, 64], scheme.parse().unwrap()).unwrap();
            let tensors = [
                ("w".to_string(), StoredTensor::Quantized(matrix.clone())),
                ("b".to_string(), StoredTensor::Full(vec![2], vec![1.0, 2.0])),
                ("c".to_string(), StoredTensor::Bf16(vec![1], vec![1.5f32.powi(200)])),
                ("h".to_string(), StoredTensor::Half(vec![1], vec![0.5])),
            ];
            let bytes = write_tensors(&tensors, &[("format", "pt")]).unwrap();
            let mut read = Weights::open(&folder(bytes.clone()), "model").unwrap();
            assert_eq!(read.tensors().keys().collect::<Vec<_>>(), ["b", "c", "h", "w"]);
            assert_eq!(read.tensors()["w"].shape, [4, 64]);
            assert_eq!(read.read("w").unwrap().unwrap(), matrix.values());
            assert_eq!(read.read_quantized("w").unwrap(), Some(matrix));
            assert_eq!(read.read_quantized("b").unwrap(), None);
            assert_eq!(read.read("h").unwrap().unwrap(), [0.5]);
            let rounded = half::bf16::from_f32(1.5f32.powi(200)).to_f32();
            assert_eq!(read.read("c").unwrap().unwrap(), [rounded]);
        }
    }

    #[test]
    #[cfg(not(target_arch = "wasm32"))]
    fn tables_stay_in_mapped_files() {
        use crate::checkpoint::{
            Directory, Existing, Folder, KilnFile, write_directory, write_kiln_file,
        };
        let values: Vec<f32> = (0..4096).map(|i| (i as f32 * 0.3).sin()).collect();
        for scheme in ["int8:32", "int4:64", "fp8-e4m3"] {
            let table = Quantized::round(&values, [64, 64], scheme.parse().unwrap()).unwrap();
            let tensors = [("w".to_string(), StoredTensor::Quantized(table.clone()))];
            let mut files = folder(write_tensors(&tensors, &[]).unwrap());
            let place = tempfile::tempdir().unwrap();
            let (directory, file) = (place.path().join("model"), place.path().join("model.kiln"));
            write_directory(&directory, &files, Existing::Refuse).unwrap();
            files.0.insert("kiln.json".into(), "{}".into());
            write_kiln_file(&files, &mut std::fs::File::create(&file).unwrap()).unwrap();

            let kiln = KilnFile::on_disk(&file).unwrap();
            let mut weights = Weights::open(&kiln, "model").unwrap();
            let mapped = weights.map_quantized("w").unwrap().unwrap();
            assert_eq!(mapped, table);
            let within = kiln.map("model.safetensors").unwrap();
            assert!(within.as_ptr_range().contains(&mapped.codes().as_ptr()));
            let copied = weights.read_quantized("w").unwrap().unwrap();
            assert!(!within.as_ptr_range().contains(&copied.codes().as_ptr()));
            drop((within, weights, kiln));
            assert_eq!(mapped, table);

            let open = Directory::new(&directory).unwrap();
            let mut weights = Weights::open(&open, "model").unwrap();
            let mapped = weights.map_quantized("w").unwrap().unwrap();
            // Another model takes the place; this one stays as it was.
            write_directory(&directory, &folder(sample()), Existing::ReplaceOurs).unwrap();
            assert_eq!(mapped, table);
        }
    }

    #[test]
    fn matrices_are_given_in_another_precision() {
        let values: Vec<f32> = (0..256).map(|i| (i as f32 * 0.3).sin()).collect();
        let int8 = Quantized::round(&values, [4, 64], "int8:64".parse().unwrap()).unwrap();
        let tensors = [
            ("w".to_string(), StoredTensor::Full(vec![4, 64], values.clone())),
            ("q".to_string(), StoredTensor::Quantized(int8.clone())),
            ("b".to_string(), StoredTensor::Full(vec![64], values[..64].to_vec())),
        ];
        let bytes = write_tensors(&tensors, &[]).unwrap();
        let mut weights = Weights::open(&folder(bytes), "model").unwrap();
        assert_eq!(weights.read_quantized("w").unwrap(), None);
        weights.give_in("int4".parse().unwrap());
        let scheme = weights.scheme("w").unwrap();
        let rounded = Quantized::round(&values, [4, 64], scheme).unwrap();
        assert_eq!(weights.read_quantized("w").unwrap().unwrap(), rounded);
        let again = Quantized::round(&int8.values(), [4, 64], scheme).unwrap();
        assert_eq!(weights.read_quantized("q").unwrap().unwrap(), again);
        assert_eq!(weights.read_quantized("b").unwrap(), None);
        weights.give_in(WeightPrecision::Full);
        assert_eq!(weights.read_quantized("q").unwrap(), None);
        assert_eq!(weights.read("q").unwrap().unwrap(), int8.values());
    }

    #[test]
    fn the_same_tensors_give_the_same_file() {
        let tensor = ("w".to_string(), StoredTensor::Full(vec![1], vec![1.0]));
        let metadata = [("format", "pt"), ("a", "1"), ("b", "\"2\""), ("c", "3"), ("d", "4")];
        let write = || write_tensors(std::slice::from_ref(&tensor), &metadata).unwrap();
        let first = write();
        assert!((0..20).all(|_| write() == first));
        let mut read = Weights::open(&folder(first), "model").unwrap();
        assert_eq!(read.read("w").unwrap().unwrap(), [1.0]);
    }

    #[test]
    fn schemes_that_do_not_fit_their_tensors_are_refused() {
        let tensors = || {
            let codes = Writable::new(Numbers::Codes(Dtype::I8, &[1; 128]), vec![2, 64]).unwrap();
            let scales = Writable::new(Numbers::Half(&[0.0; 4]), vec![2, 2]).unwrap();
            vec![("w".to_string(), codes), ("w.scales".to_string(), scales)]
        };
        let open = |scheme: &str| {
            let bytes = write(tensors(), &[(QUANTIZED, scheme)]).unwrap();
            Weights::open(&folder(bytes), "model").map(drop)
        };
        open(r#"{"w":"int8:32"}"#).unwrap();
        for wrong in [
            r#"{"w":"int8:64"}"#,
            r#"{"w":"int4:32"}"#,
            r#"{"w":"fp8-e4m3:32"}"#,
            r#"{"w":"int3:32"}"#,
            r#"{"v":"int8:32"}"#,
            "no JSON",
        ] {
            let error = open(wrong).unwrap_err().to_string();
            assert!(error.starts_with("model/model.safetensors"), "{error}");
        }
    }

    #[test]
    fn every_truncation_is_an_error() {
        let whole = sample();
        for length in 0..whole.len() {
            let result = Weights::open(&folder(whole[..length].to_vec()), "model");
            assert!(result.is_err(), "{length} of {} bytes were accepted", whole.len());
        }
    }

    #[test]
    fn shards_stay_in_their_folder() {
        let index = br#"{"weight_map":{"w":"../../etc/passwd"}}"#.to_vec();
        let files = Files([("model.safetensors.index.json".to_string(), index.into())].into());
        assert!(
            Weights::open(&files, "model")
                .err()
                .unwrap()
                .to_string()
                .contains("outside the folder")
        );
    }

    proptest! {
        #[test]
        fn flipped_bytes_never_panic(i in 0usize..100, to in any::<u8>()) {
            let mut bytes = sample();
            let i = i % bytes.len();
            bytes[i] = to;
            if let Ok(mut weights) = Weights::open(&folder(bytes), "model") {
                let names: Vec<String> = weights.tensors().keys().cloned().collect();
                for name in names {
                    let _ = weights.read(&name);
                }
            }
        }

        #[test]
        fn any_header_never_panics(header in "\\PC{0,80}", data in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.as_bytes());
            bytes.extend(data);
            let _ = Weights::open(&folder(bytes), "model");
        }

        #[test]
        fn any_index_never_panics(index in proptest::collection::vec(any::<u8>(), 0..80)) {
            let files = Files([("model.safetensors.index.json".to_string(), index.into())].into());
            prop_assert!(Weights::open(&files, "model").is_err());
        }
    }
}
