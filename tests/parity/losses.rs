//! Losses and their gradients against sentence-transformers'.

use burn::backend::Autodiff;
use burn::tensor::{Tensor, TensorData};
use kiln_embed::kernels::Kernels;
use kiln_embed::loss::{Contrasted, Gist, angle_similarities, cosent, cosines, gist, margin_mse};
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
        assert!(error < 1e-5, "{kind}: {} {}", value[0], expected[0]);
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
                assert!(error < 1e-5, "{kind} {name}: {grad} {expected}");
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
    let contrasted = |[queries, positives, first, second]: [Tensor<Autodiff<B>, 2>; 4]| {
        Contrasted { queries, positives, negatives: vec![first, second] }
    };
    let own = contrasted([query.clone(), positive.clone(), first.clone(), second.clone()]);
    let guide = contrasted(guides);
    let settings = Gist { temperature: 0.05, ..Gist::default() };
    fixture.compare("gist", gist(&own, &guide, &settings), &leaves, true);
    let settings = Gist {
        margin: 0.3,
        relative: true,
        contrast_anchors: false,
        contrast_positives: false,
        ..settings
    };
    fixture.compare("gist.relative", gist(&own, &guide, &settings), &leaves, true);
}

kiln_tests::on_every_device!(losses);
