//! EXAONE 3: llama with RoPE on (i, i + rope_dim / 2), and Llama 3's factors of its frequencies.

use super::Family;

pub(super) const EXAONE: Family = Family {
    architecture: "exaone",
    models: "EXAONE 3, EXAONE 3.5",
    features: "Llama 3's RoPE factors",
    rope_factors: true,
    read: |_, hyper| {
        hyper.neox = true;
        Ok(())
    },
    ..Family::LIKE_LLAMA
};
