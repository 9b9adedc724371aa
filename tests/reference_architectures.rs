//! Every architecture on the reference executor against llama.cpp's outputs on tiny models.

mod architectures;
mod common;
#[path = "common/random.rs"]
mod random;

use architectures::MODELS;
use common::{Driven, Sizes};
use hob::kernels::KvFormat;
use hob::reference::ReferenceExecutor;

/// llama.cpp's own f32 arithmetic, summed in another order, with GELU looked up in f16.
const TOLERANCE: f32 = 0.01;

#[test]
fn tiny_models_give_the_logits_of_llama_cpp() {
    // Where llama.cpp finds them: the README beside the golden files says how.
    if let Some(folder) = std::env::var_os("HOB_WRITE_MODELS") {
        let folder = std::path::Path::new(&folder);
        for tiny in MODELS {
            let prompt = serde_json::json!({ "tokens": tiny.prompt(), "context": tiny.context });
            let path = tiny.write(folder).with_extension("prompt.json");
            std::fs::write(path, prompt.to_string()).expect("the folder takes a file");
        }
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut failures = Vec::new();
    for tiny in MODELS {
        let path = tiny.write(folder.path());
        let sizes = Sizes {
            context_tokens: tiny.context,
            sessions: 1,
            tokens_max: 64,
            format: KvFormat::F32,
        };
        let mut model = Driven::load(Box::new(ReferenceExecutor::with_lanes(8)), &path, sizes);
        match architectures::check(&mut model, tiny, TOLERANCE) {
            Ok(worst) => println!("{}: worst logprob difference {worst:.5}", tiny.name),
            Err(failure) => failures.push(failure),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
