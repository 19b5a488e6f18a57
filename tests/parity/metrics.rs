//! Measures and their helpers against scipy, scikit-learn, mteb and trec_eval, on random and
//! degenerate inputs (`tests/reference/metrics.py`).

use std::collections::HashMap;

use serde::de::DeserializeOwned;
use serde_json::Value;
use train_native::analyze::{health, principal_components};
use train_native::eval::metrics::{
    Ranking, adjusted_mutual_information, classification_scores, pair_scores, pearson, spearman,
    v_measure,
};
use train_native::eval::{
    Evaluated, Measure, NumpyRandom, PythonRandom, fit_predict, mini_batch_kmeans, wilcoxon,
};

fn fixture() -> Value {
    serde_json::from_str(include_str!("../fixtures/eval/metrics.json")).unwrap()
}

fn get<T: DeserializeOwned>(value: &Value, name: &str) -> T {
    serde_json::from_value(value[name].clone()).unwrap()
}

/// Equal to 1e-9; not defined there must be not defined here.
fn same(ours: f64, theirs: &Value, what: &str) {
    match theirs.as_f64() {
        Some(theirs) => assert!((ours - theirs).abs() < 1e-9, "{what}: {ours}, expected {theirs}"),
        None => assert!(ours.is_nan(), "{what}: {ours}, expected none"),
    }
}

#[test]
fn correlations_are_scipys() {
    for (i, case) in fixture()["correlations"].as_array().unwrap().iter().enumerate() {
        let (a, b): (Vec<f64>, Vec<f64>) = (get(case, "a"), get(case, "b"));
        same(pearson(&a, &b), &case["pearson"], &format!("pearson {i}"));
        same(spearman(&a, &b), &case["spearman"], &format!("spearman {i}"));
    }
}

#[test]
fn classification_scores_are_scikit_learns() {
    for case in fixture()["classifications"].as_array().unwrap() {
        let ours = classification_scores(
            &get::<Vec<usize>>(case, "truth"),
            &get::<Vec<usize>>(case, "found"),
        );
        for (name, expected) in case["scores"].as_object().unwrap() {
            same(ours[name], expected, name);
        }
    }
}

#[test]
fn pair_scores_are_mtebs() {
    for (i, case) in fixture()["pairs"].as_array().unwrap().iter().enumerate() {
        let labels: Vec<bool> =
            get::<Vec<u8>>(case, "labels").iter().map(|&one| one == 1).collect();
        let ours = pair_scores(&get::<Vec<f64>>(case, "scores"), &labels);
        for (name, expected) in case["expected"].as_object().unwrap() {
            same(ours[name.as_str()], expected, &format!("{name} of case {i}"));
        }
    }
}

#[test]
fn clustering_scores_are_scikit_learns() {
    for (i, case) in fixture()["clusterings"].as_array().unwrap().iter().enumerate() {
        let (labels, clusters): (Vec<usize>, Vec<usize>) =
            (get(case, "labels"), get(case, "clusters"));
        same(v_measure(&labels, &clusters), &case["v_measure"], &format!("v-measure {i}"));
        same(adjusted_mutual_information(&labels, &clusters), &case["ami"], &format!("ami {i}"));
    }
}

/// `blobs` of the reference script.
fn blobs(case: &Value) -> (ndarray::Array2<f32>, Vec<usize>) {
    let (rows, dim, kinds): (usize, usize, usize) =
        (get(case, "rows"), get(case, "dim"), get(case, "kinds"));
    let spread: f64 = get(case, "spread");
    let mut random = NumpyRandom::new(rows as u32);
    let mut uniform = |n: usize| (0..n).map(|_| random.unit() - 0.5).collect::<Vec<f64>>();
    let centres = uniform(kinds * dim);
    let labels = random.integers(kinds, rows);
    let mut points: Vec<f64> = (0..rows * dim).map(|_| spread * (random.unit() - 0.5)).collect();
    for (point, &label) in points.chunks_mut(dim).zip(&labels) {
        point.iter_mut().zip(&centres[label * dim..]).for_each(|(x, c)| *x += c);
        let norm = point.iter().map(|x| x * x).sum::<f64>().sqrt();
        point.iter_mut().for_each(|x| *x /= norm);
    }
    let points = points.into_iter().map(|x| x as f32).collect();
    (ndarray::Array2::from_shape_vec((rows, dim), points).unwrap(), labels)
}

#[test]
fn mini_batch_kmeans_is_scikit_learns() {
    for case in fixture()["kmeans"].as_array().unwrap() {
        let (points, _) = blobs(case);
        let ours = mini_batch_kmeans(points.view(), get(case, "kinds"), get(case, "batch"), 42);
        let theirs: Vec<usize> = get(case, "labels");
        let agree = ours.iter().zip(&theirs).filter(|(a, b)| a == b).count();
        assert_eq!(agree, theirs.len(), "{} rows, {} clusters", theirs.len(), case["kinds"]);
    }
}

#[test]
fn logistic_regression_is_scikit_learns() {
    for case in fixture()["logistic"].as_array().unwrap() {
        let (points, labels) = blobs(case);
        let (half, points) = (labels.len() / 2, points.mapv(f64::from));
        let rows = |range: std::ops::Range<usize>| points.slice(ndarray::s![range, ..]).to_owned();
        let ours =
            fit_predict(rows(0..half), labels[..half].to_vec(), &rows(half..labels.len())).unwrap();
        let theirs: Vec<usize> = get(case, "found");
        let other = ours.iter().zip(&theirs).filter(|(a, b)| a != b).count();
        assert_eq!(other, 0, "of {}", theirs.len());
    }
}

#[test]
fn ranking_measures_are_trec_evals_and_mtebs() {
    for (i, case) in fixture()["rankings"].as_array().unwrap().iter().enumerate() {
        let grades: HashMap<String, f64> = get(case, "grades");
        let scores: HashMap<String, f64> = get(case, "scores");
        let documents = scores.iter().map(|(id, score)| (id.as_str(), *score)).collect();
        let ranking =
            Ranking::of(documents, |id| grades.get(id).copied(), grades.values().copied());
        for (name, expected) in case["expected"].as_object().unwrap() {
            let (kind, depth) = name.rsplit_once('_').unwrap_or((name, ""));
            let depth: usize = depth.parse().unwrap_or(usize::MAX);
            let ours = match (kind, name.as_str()) {
                ("ndcg_cut", _) => ranking.ndcg(depth),
                ("map_cut", _) => ranking.average_precision(depth),
                (_, "set_P" | "set_recall" | "set_F") => continue,
                ("recall", _) => ranking.recall(depth),
                ("P", _) => ranking.precision(depth),
                ("success", _) => ranking.success(depth),
                ("mrr", _) => ranking.reciprocal_rank(depth),
                (_, "map") => ranking.average_precision(usize::MAX),
                (_, "ndcg") => ranking.ndcg(usize::MAX),
                (_, "recip_rank") => ranking.reciprocal_rank(usize::MAX),
                (_, "Rprec") => ranking.r_precision(),
                (_, "bpref") => ranking.bpref(),
                // trec_eval 10 rounds the recall levels otherwise than the 9 in pytrec_eval; the
                // run below is 10's.
                _ if name.starts_with("iprec") => continue,
                _ => panic!("{name}"),
            };
            same(ours, expected, &format!("{name} of case {i}"));
        }
    }
}

#[test]
fn a_run_is_printed_as_trec_eval_does() {
    let file = |name: &str| {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/eval").join(name)
    };
    // Query 6 is judged and not in the run, query 9 the other way. trec_eval 10.0 ends at the first
    // (9.0 passes over it, as its manual says), so its output is of judgements without that query;
    // with -c it counts as 0.
    for (name, complete) in [("trec_eval.txt", false), ("trec_eval_complete.txt", true)] {
        let expected = std::fs::read_to_string(file(name)).unwrap();
        let (arguments, expected) = expected.split_once('\n').unwrap();
        let measures: Vec<Measure> = arguments
            .split_whitespace()
            .filter(|word| !word.starts_with('-'))
            .flat_map(|name| Measure::parse(name).unwrap())
            .collect();
        let actual = Evaluated::read(&file("qrels.txt"), &file("run.txt"), complete, 1.0).unwrap();
        // trec_eval prints measures in an order of its own.
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(String::from).collect();
            lines.sort();
            lines
        };
        let (ours, theirs) = (sorted(&actual.to_text(&measures, true).unwrap()), sorted(expected));
        assert!(theirs.iter().any(|line| line.contains("\tall\t")), "{name}");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "{name}");
        }
        assert_eq!(ours.len(), theirs.len(), "{name}");
    }
}

#[test]
fn signed_ranks_are_scipys() {
    for (i, case) in fixture()["signed_ranks"].as_array().unwrap().iter().enumerate() {
        let ours = wilcoxon(&get::<Vec<f64>>(case, "differences"));
        same(ours.statistic, &case["statistic"], &format!("statistic {i}"));
        same(ours.p, &case["p"], &format!("p {i}"));
    }
}

#[test]
fn draws_are_pythons() {
    let fixture = fixture();
    let mut random = PythonRandom::new(42);
    assert_eq!(random.sample(5000, 40), get::<Vec<usize>>(&fixture["draws"], "sample"));
    assert_eq!(random.choices(777, 20), get::<Vec<usize>>(&fixture["draws"], "choices"));
}

#[test]
fn measures_of_the_space_are_numpys() {
    for (i, case) in fixture()["spaces"].as_array().unwrap().iter().enumerate() {
        let vectors: Vec<Vec<f32>> = get(case, "vectors");
        let (health, spectrum) = health(&vectors, None).unwrap();
        let [ninety, ninety_nine]: [usize; 2] = get(case, "dimensions");
        assert_eq!((health.dimensions_90, health.dimensions_99), (ninety, ninety_nine));
        for (ours, name) in [
            (health.uniformity, "uniformity"),
            (health.mean_cosine, "mean_cosine"),
            (health.isotropy, "isotropy"),
            (health.effective_dimension, "effective_dimension"),
            (health.rank_me, "rank_me"),
        ] {
            let theirs: f64 = get(case, name);
            assert!(
                (ours - theirs).abs() < 1e-6 * theirs.abs().max(1.0),
                "{i} {name}: {ours}, {theirs}"
            );
        }
        for (ours, theirs) in spectrum.iter().zip(get::<Vec<f64>>(case, "spectrum")) {
            assert!((ours - theirs).abs() < 1e-9, "{ours}, {theirs}");
        }
        // Components are the same up to their signs.
        let (points, shares) = principal_components(&vectors).unwrap();
        let theirs: Vec<(f64, f64)> = get(case, "pca");
        let largest = |of: fn(&(f64, f64)) -> f64, points: &[(f64, f64)]| {
            points.iter().map(|point| of(point).abs()).fold(0.0, f64::max)
        };
        for of in [|point: &(f64, f64)| point.0, |point: &(f64, f64)| point.1] {
            let sign = points.iter().zip(&theirs).map(|(a, b)| of(a) * of(b)).sum::<f64>().signum();
            let scale = largest(of, &theirs);
            for (a, b) in points.iter().zip(&theirs) {
                assert!((sign * of(a) - of(b)).abs() < 1e-4 * scale, "{i}: {a:?}, {b:?}");
            }
        }
        for (ours, theirs) in shares.iter().zip(get::<Vec<f64>>(case, "shares")) {
            assert!((ours - theirs).abs() < 1e-6, "{i}: {ours}, {theirs}");
        }
    }
}
