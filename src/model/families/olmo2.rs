//! OLMo 2 and 3: no norms before attention and feed-forward but behind them, and norms of q and k
//! over all heads together; OLMo 3 has three layers with a window before each global one.

use super::{Family, Windows};
use crate::model::ModelLoadError;
use crate::model::hyper::{HyperParams, QkNorm, read_windowed};
use crate::model::keys::Keys;
use crate::model::rope::RopeSpec;

pub(super) const OLMO2: Family = Family {
    architecture: "olmo2",
    models: "OLMo 2, OLMo 3",
    features: "norms after, norms of q and k over all heads, sliding windows (3)",
    windows: Windows::Own,
    read,
    tensors: &["output.weight"],
    ..Family::LIKE_LLAMA
};

fn read(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    hyper.neox = true;
    hyper.norms_before = false;
    hyper.norms_after = true;
    hyper.qk_norm = QkNorm::Whole;
    if let Some(window) = keys.opt_window()? {
        // Layers with a window see no long distances: their frequencies are never scaled.
        hyper.ropes.push(RopeSpec::plain(hyper.ropes[0].base));
        let windowed = read_windowed(keys, hyper.layers.len(), 4)?;
        hyper.window_layers(&windowed, window, 1);
    }
    Ok(())
}
