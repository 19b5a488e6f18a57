//! Losses and their gradients against sentence-transformers'.

use burn::backend::Autodiff;
use burn::tensor::{Int, Tensor, TensorData};
use kiln_embed::kernels::Kernels;
use kiln_embed::loss::{
    Candidates, Gist, Guide, InfoNce, MarginStrategy, Preference, angle_similarities,
    binary_cross_entropy, cosent, cosines, guided_info_nce, lambda_preferences, margin_mse,
    multiple_negatives_ranking, preference_loss, rank_net_preferences, score_margin_mse, score_mse,
};
use kiln_tests::Tensors;

struct Fixture<B: Kernels> {
    tensors: Tensors,
    device: B::Device,
}

impl<B: Kernels> Fixture<B> {
    fn leaf(&mut self, name: &str) -> Tensor<Autodiff<B>, 2> {
        let (shape, values) = self.tensors.get(name);
        let data = TensorData::new(values, [shape[0], shape[1]]);
        Tensor::from_data(data, &self.device).require_grad()
    }

    /// Compares a loss and the gradients of its leaves. A cosine's gradient has a part along the vector, which
    /// a product of vectors that are normalised already has not: it is taken out of ours.
    fn compare(
        &mut self,
        kind: &str,
        loss: Tensor<Autodiff<B>, 1>,
        leaves: &[(&str, &Tensor<Autodiff<B>, 2>)],
        tangent: bool,
    ) {
        let value: Vec<f32> = loss.clone().into_data().to_vec().unwrap();
        let (_, expected) = self.tensors.get(&format!("{kind}.loss"));
        let error = (value[0] - expected[0]).abs() / expected[0].abs().max(1.0);
        let allowed = kiln_tests::allowed::<B>(&self.device, 1e-5);
        assert!(error < allowed, "{kind}: {} {}", value[0], expected[0]);
        let grads = loss.backward();
        for (name, leaf) in leaves {
            let mut grad = leaf.grad(&grads).unwrap();
            if tangent {
                let vector = Tensor::clone(leaf).inner();
                let along = (grad.clone() * vector.clone()).sum_dim(1);
                grad = grad - vector * along;
            }
            let grad: Vec<f32> = grad.into_data().to_vec().unwrap();
            let (_, expected) = self.tensors.get(&format!("{kind}.{name}"));
            let largest = expected.iter().fold(1.0f32, |most, value| most.max(value.abs()));
            for (grad, expected) in grad.iter().zip(&expected) {
                let error = (grad - expected).abs() / largest;
                assert!(error < allowed, "{kind} {name}: {grad} {expected}");
            }
        }
    }
}

fn losses<B: Kernels>(device: B::Device) {
    let tensors = Tensors::open("losses", "expected");
    let mut fixture = Fixture::<B> { tensors, device };
    let scores: Vec<f64> = fixture.tensors.get("scores").1.into_iter().map(f64::from).collect();
    let (a, b) = (fixture.leaf("a"), fixture.leaf("b"));
    let loss = cosent(cosines(a.clone(), b.clone()), &scores, 20.0);
    fixture.compare("cosent", loss, &[("a", &a), ("b", &b)], true);
    let loss = cosent(angle_similarities(a.clone(), b.clone()), &scores, 20.0);
    fixture.compare("angle", loss, &[("a", &a), ("b", &b)], true);

    let names = ["query", "positive", "negative.0", "negative.1"];
    let [query, positive, first, second] = names.map(|name| fixture.leaf(name));
    let leaves = [
        ("query", &query),
        ("positive", &positive),
        ("negative.0", &first),
        ("negative.1", &second),
    ];
    let [n, dim] = query.dims();
    let negatives = [&first, &second].map(|x| x.clone().reshape([n, 1, dim])).to_vec();
    let margins: Vec<f64> = fixture.tensors.get("margins").1.into_iter().map(f64::from).collect();
    let loss = margin_mse(query.clone(), positive.clone(), Tensor::cat(negatives, 1), &margins);
    fixture.compare("margin_mse", loss, &leaves, false);

    let guides = names.map(|name| fixture.leaf(&format!("guide.{name}")).detach());
    let [guide_queries, guide_documents @ ..] = guides;
    let guide_documents = Tensor::cat(guide_documents.to_vec(), 0);
    // All positives, all first negatives, all second ones.
    let candidates = Candidates {
        owner: (0..3 * n).map(|document| document % n).collect(),
        positive: (0..n).collect(),
        ..Candidates::grouped(n, 3, true)
    };
    let settings = InfoNce { temperature: 0.05, ..InfoNce::default() };
    for (kind, margin, margin_strategy, both) in [
        ("gist", 0.0, MarginStrategy::Absolute, true),
        ("gist.relative", 0.3, MarginStrategy::Relative, false),
    ] {
        let guide = Guide {
            queries: guide_queries.clone(),
            documents: guide_documents.clone(),
            settings: Gist {
                margin,
                margin_strategy,
                contrast_anchors: both,
                contrast_positives: both,
            },
        };
        let documents = Tensor::cat(vec![positive.clone(), first.clone(), second.clone()], 0);
        let loss = guided_info_nce(query.clone(), documents, &candidates, &settings, Some(&guide));
        fixture.compare(kind, loss, &leaves, true);
    }
}

/// The losses of cross-encoders over drawn scores.
fn cross_encoder_losses<B: Kernels>(device: B::Device) {
    let tensors = Tensors::open("losses", "cross_encoder");
    let mut fixture = Fixture::<B> { tensors, device };
    let leaf = fixture.leaf("scores");
    let [queries, texts] = leaf.dims();
    let flat = || leaf.clone().reshape([queries * texts]);
    let at = |scores: Tensor<Autodiff<B>, 1>, places: &[usize]| {
        let rows: Vec<i32> = places.iter().map(|&place| place as i32).collect();
        let places = TensorData::new(rows, [places.len()]);
        scores.clone().select(0, Tensor::<Autodiff<B>, 1, Int>::from_data(places, &scores.device()))
    };
    let numbers = |fixture: &mut Fixture<B>, name: &str| -> Vec<f64> {
        fixture.tensors.get(name).1.into_iter().map(f64::from).collect()
    };
    for (kind, labels, weight) in [
        ("binary_cross_entropy", "binary", 1.0),
        ("binary_cross_entropy.weighted", "binary", 3.0),
        ("binary_cross_entropy.soft", "soft", 2.0),
    ] {
        let labels = numbers(&mut fixture, labels);
        let loss = binary_cross_entropy(flat(), &labels, weight);
        fixture.compare(kind, loss, &[("grad", &leaf)], false);
    }
    let teacher = numbers(&mut fixture, "teacher");
    fixture.compare("mse", score_mse(flat(), &teacher), &[("grad", &leaf)], false);
    let (mut above, mut below, mut margins) = (Vec::new(), Vec::new(), Vec::new());
    for query in 0..queries {
        for text in 1..texts {
            above.push(query * texts);
            below.push(query * texts + text);
            margins.push(teacher[query * texts] - teacher[query * texts + text]);
        }
    }
    let loss = score_margin_mse(at(flat(), &above), at(flat(), &below), &margins);
    fixture.compare("margin_mse", loss, &[("grad", &leaf)], false);

    let table = fixture.leaf("table");
    let [_, columns] = table.dims();
    let places: Vec<usize> = (0..queries)
        .flat_map(|query| {
            let own = [query, queries + query];
            let others = (0..columns).filter(move |text| !own.contains(text));
            [own[0]]
                .into_iter()
                .chain(others)
                .chain([own[1]])
                .map(move |text| query * columns + text)
        })
        .collect();
    let scores = at(table.clone().reshape([queries * columns]), &places);
    let scores = scores.reshape([queries, columns]);
    let loss = multiple_negatives_ranking(scores, vec![false; queries * columns], 10.0);
    fixture.compare("multiple_negatives_ranking", loss, &[("grad", &table)], false);

    let (_, now) = fixture.tensors.get("scores");
    for labels in ["binary", "graded"] {
        let of = numbers(&mut fixture, labels);
        for kind in ["rank_net", "lambda"] {
            let preferences: Vec<Preference> = (0..queries)
                .flat_map(|query| {
                    let places: Vec<usize> = (query * texts..(query + 1) * texts).collect();
                    let (labels, now) =
                        (&of[query * texts..][..texts], &now[query * texts..][..texts]);
                    match kind {
                        "lambda" => lambda_preferences(&places, labels, now),
                        _ => rank_net_preferences(&places, labels),
                    }
                })
                .collect();
            let places = |of: fn(&Preference) -> usize| -> Vec<usize> {
                preferences.iter().map(of).collect()
            };
            let above = at(flat(), &places(|one| one.above));
            let below = at(flat(), &places(|one| one.below));
            let weights: Vec<f64> = preferences.iter().map(|one| one.weight).collect();
            let loss = preference_loss(above, below, &weights);
            fixture.compare(&format!("{kind}.{labels}"), loss, &[("grad", &leaf)], false);
        }
    }
}

kiln_tests::on_every_device!(losses, cross_encoder_losses);
