//! Encoders on a device: llama.cpp's embeddings, and the same bits for a text whatever else is in
//! the batch.

mod common;
#[path = "common/device.rs"]
mod device;

use common::{Driven, Sizes, check_embeddings, encoder};
use hob::kernels::KvFormat;

/// llama.cpp looks GELU up in a table of f16; the values of an embedding of length 1 are about 0.1.
const TOLERANCE: f32 = 0.001;

#[test]
fn encoders_give_the_embeddings_of_llama_cpp() {
    for name in ["bert-cls", "nomic-bert"] {
        let executor = device::open(false);
        let messages = executor.messages();
        let (path, goldens) = encoder(name);
        let sizes =
            Sizes { context_tokens: 128, sessions: 3, tokens_max: 128, format: KvFormat::F32 };
        let mut model = Driven::load(Box::new(executor), &path, sizes);
        let worst = check_embeddings(&mut model, &goldens, TOLERANCE);
        println!("{name}: worst difference {worst:.6}");
        drop(model);
        device::assert_silent(&messages);
    }
}
