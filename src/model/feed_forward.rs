//! The feed-forward of a layer: its weights, and its part of a recording.

use super::ModelLoadError;
use super::forward::{Input, Step};
use super::hyper::{HyperParams, Mlp};
use super::layers::{Layer, Projection};
use super::loader::{Arrangement, Loader, Part};
use crate::gpu::Recording;
use crate::kernels::PackedMatrix;
use crate::kernels::glu;
use crate::kernels::matmul::Epilogue;

/// How the hidden row is made of the input.
#[derive(Clone, Debug)]
pub(super) enum Hidden {
    /// act(gate x) * up x, groups of gate and up in turn: the activation is an epilogue of the
    /// product.
    Gated(PackedMatrix),
    /// The same by two products, then the activation.
    GatedApart([Projection; 2]),
    /// act(up x), an epilogue of the product.
    Plain(Projection),
}

/// A feed-forward's weights.
#[derive(Clone, Debug)]
pub(super) struct FeedForward {
    pub hidden: Hidden,
    pub down: Projection,
}

impl FeedForward {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        hyper: &HyperParams,
        index: usize,
    ) -> Result<Self, ModelLoadError> {
        let (width, hidden) = (hyper.embedding, hyper.feed_forward);
        let name = |part: &str| format!("blk.{index}.{part}");
        Ok(Self {
            hidden: match hyper.mlp {
                Mlp::Gelu => {
                    Hidden::Plain(Projection::load(loader, &name("ffn_up"), width, hidden)?)
                }
                Mlp::SwiGlu | Mlp::GeGlu => load_gated(loader, hyper, index)?,
            },
            down: Projection::load(loader, &name("ffn_down"), hidden, width)?,
        })
    }
}

/// Gate and up as one alternating matrix where type and bias allow it.
fn load_gated(
    loader: &mut Loader<'_>,
    hyper: &HyperParams,
    index: usize,
) -> Result<Hidden, ModelLoadError> {
    let stems = ["ffn_gate", "ffn_up"].map(|part| format!("blk.{index}.{part}"));
    let (width, hidden) = (hyper.embedding, hyper.feed_forward);
    let has_bias = stems.iter().any(|stem| loader.has(&format!("{stem}.bias")));
    if has_bias {
        let gate = Projection::load(loader, &stems[0], width, hidden)?;
        let up = Projection::load(loader, &stems[1], width, hidden)?;
        return Ok(Hidden::GatedApart([gate, Projection { offset: hidden, ..up }]));
    }
    let parts = if hyper.gate_in_up {
        let both = loader.tensor(&format!("{}.weight", stems[1]), &[width, 2 * hidden])?;
        [
            Part { first: 0, rows: hidden, tensor: both },
            Part { first: hidden, rows: hidden, tensor: both },
        ]
    } else {
        let gate = loader.tensor(&format!("{}.weight", stems[0]), &[width, hidden])?;
        let up = loader.tensor(&format!("{}.weight", stems[1]), &[width, hidden])?;
        [Part::whole(gate), Part::whole(up)]
    };
    if loader.can_join(&parts) {
        return Ok(Hidden::Gated(loader.pack(&parts, Arrangement::Alternating)?));
    }
    let gate = loader.pack(&parts[..1], Arrangement::Stacked)?;
    let up = loader.pack(&parts[1..], Arrangement::Stacked)?;
    Ok(Hidden::GatedApart([
        Projection { matrix: gate, bias: None, offset: 0 },
        Projection { matrix: up, bias: None, offset: hidden },
    ]))
}

impl Step<'_> {
    /// The feed-forward of `input`, added to the stream.
    pub(super) fn feed_forward(&self, recording: &mut Recording, layer: &Layer, input: Input) {
        let (hyper, scratch) = (&self.model.hyper, &self.model.scratch);
        let width = hyper.feed_forward;
        let out = scratch.hidden;
        match &layer.feed_forward.hidden {
            Hidden::Gated(matrix) => {
                let projection = Projection { matrix: *matrix, bias: None, offset: 0 };
                let epilogue =
                    if hyper.mlp == Mlp::GeGlu { Epilogue::GeGlu } else { Epilogue::SwiGlu };
                self.product(recording, &projection, input, (out, width), epilogue);
            }
            Hidden::Plain(up) => {
                self.product(recording, up, input, (out, width), Epilogue::Gelu);
            }
            Hidden::GatedApart(projections) => {
                for projection in projections {
                    let both = (scratch.gate_up, 2 * width);
                    self.product(recording, projection, input, both, Epilogue::Store);
                }
                glu::record(
                    recording,
                    &self.model.capabilities,
                    scratch.gate_up,
                    out,
                    width,
                    hyper.mlp == Mlp::GeGlu,
                    self.shape.tokens,
                );
            }
        }
        let down = &layer.feed_forward.down;
        self.join_stream(recording, down, out, layer.feed_forward_after);
    }
}
