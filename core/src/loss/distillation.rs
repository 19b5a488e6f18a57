//! Losses by which a student learns from a teacher.

use burn::tensor::activation::{log_softmax, softmax};
use burn::tensor::{Tensor, backend::Backend};

/// Mean squared error between a student's hidden states and its teacher's, `[batch, seq, hidden]`
/// each, over the tokens that `mask` `[batch, seq]` counts as 1 (padding is 0). NV-Embed
/// (arXiv:2405.17428), appendix A.2: `L_kd` is the sum of this over the paired layers.
pub fn state_distillation<B: Backend>(
    student: Tensor<B, 3>,
    teacher: Tensor<B, 3>,
    mask: Tensor<B, 2>,
) -> Tensor<B, 1> {
    let error = (student - teacher.detach()).powf_scalar(2.0);
    let error: Tensor<B, 2> = error.mean_dim(2).squeeze_dim(2);
    (error * mask.clone()).sum() / mask.sum()
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
        // Two tokens and one of padding, whose states do not count.
        let states = |values: [[[f32; 2]; 3]; 1]| Tensor::<Flex, 3>::from_data(values, &device);
        let student = states([[[1.0, 2.0], [1.0, 1.0], [9.0, 9.0]]]);
        let teacher = states([[[0.0, 4.0], [1.0, 3.0], [0.0, 0.0]]]);
        let mask = Tensor::from_data([[1.0, 1.0, 0.0]], &device);
        let error = state_distillation(student, teacher, mask).into_scalar();
        assert!((error - (2.5 + 2.0) / 2.0).abs() < 1e-6, "{error}");
        // p = softmax(ln 3, 0) = (3/4, 1/4) against (1/2, 1/2).
        let kl = score_distillation(tensor([[0.0, 0.0]]), tensor([[3f32.ln(), 0.0]]), 1.0);
        let expected = 0.75 * 1.5f32.ln() + 0.25 * 0.5f32.ln();
        assert!((kl.into_scalar() - expected).abs() < 1e-6);
    }
}
