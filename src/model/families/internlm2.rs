//! InternLM 2 and 3: llama by another name; q, k and v come apart when the file is made.

use super::Family;

pub(super) const INTERNLM2: Family = Family {
    architecture: "internlm2",
    models: "InternLM 2, InternLM 2.5",
    features: "as llama",
    tensors: &["output.weight"],
    ..Family::LIKE_LLAMA
};
