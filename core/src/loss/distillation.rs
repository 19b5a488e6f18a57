//! Losses by which a student learns from a teacher.

use burn::tensor::activation::{log_softmax, softmax};
use burn::tensor::{Tensor, backend::Backend};

/// Sum over pairs of states of their mean squared error (NV-Embed, arXiv:2405.17428, appendix A.2).
/// A pair is the student's and the teacher's state of a layer, of the same shape `[batch, ..]`.
pub fn state_distillation<B: Backend, const D: usize>(
    pairs: impl IntoIterator<Item = (Tensor<B, D>, Tensor<B, D>)>,
) -> Option<Tensor<B, 1>> {
    pairs
        .into_iter()
        .map(|(student, teacher)| (student - teacher.detach()).powf_scalar(2.0).mean())
        .reduce(|sum, part| sum + part)
}

/// Mean over the rows of KL(teacher || student) between the softmax of their scores at a
/// temperature; `[rows, candidates]` each.
pub fn score_distillation<B: Backend>(
    student: Tensor<B, 2>,
    teacher: Tensor<B, 2>,
    temperature: f64,
) -> Tensor<B, 1> {
    let teacher = teacher.detach().div_scalar(temperature);
    let (log, target) = (log_softmax(teacher.clone(), 1), softmax(teacher, 1));
    let student = log_softmax(student.div_scalar(temperature), 1);
    (target * (log - student)).sum_dim(1).mean()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    #[test]
    fn values_by_hand() {
        let device = Default::default();
        let tensor = |values: [[f32; 2]; 1]| Tensor::<Flex, 2>::from_data(values, &device);
        let pairs = [
            (tensor([[1.0, 2.0]]), tensor([[0.0, 4.0]])),
            (tensor([[1.0, 1.0]]), tensor([[1.0, 3.0]])),
        ];
        assert!((state_distillation(pairs).unwrap().into_scalar() - (2.5 + 2.0)).abs() < 1e-6);
        // p = softmax(ln 3, 0) = (3/4, 1/4) against (1/2, 1/2).
        let kl = score_distillation(tensor([[0.0, 0.0]]), tensor([[3f32.ln(), 0.0]]), 1.0);
        let expected = 0.75 * 1.5f32.ln() + 0.25 * 0.5f32.ln();
        assert!((kl.into_scalar() - expected).abs() < 1e-6);
    }
}
