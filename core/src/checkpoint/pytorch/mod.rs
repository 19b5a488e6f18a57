//! PyTorch's files of tensors (`pytorch_model.bin`), as `torch.save` writes them: a zip archive, or
//! before PyTorch 1.6 a stream of pickles.
//!
//! A pickle is a program that builds Python objects and may call anything. Here it may build
//! dictionaries of tensors: any other name in it is refused, and nothing of it is executed. Only
//! places and shapes are read from it; the numbers stay in the file until they are asked for.

mod archive;
mod fault;
mod legacy;
mod pickle;
mod read;
mod slice;
mod strides;

pub(super) use read::read_header;
pub(super) use strides::gather;

#[cfg(test)]
mod tests;
