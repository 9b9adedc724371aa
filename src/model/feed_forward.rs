//! The feed-forward of a layer: its weights, and its part of a recording.

use super::ModelLoadError;
use super::experts::Experts;
use super::forward::{Input, Step};
use super::hyper::{HyperParams, Mlp};
use super::layers::{Layer, Projection};
use super::loader::{Arrangement, Loader, Part};
use super::lora_deltas::Update;
use crate::gpu::Recording;
use crate::kernels::PackedMatrix;
use crate::kernels::glu::{self, Glu};
use crate::kernels::matmul::Epilogue;

/// Computation of the hidden row from the input.
#[derive(Clone, Debug)]
pub(super) enum Hidden {
    /// act(gate x) * up x, groups of gate and up in turn: the activation is an epilogue of the
    /// matmul, where no adapter adds to it.
    Gated(PackedMatrix),
    /// The same by two matmuls, then the activation.
    GatedApart([Projection; 2]),
    /// act(up x), an epilogue of the matmul.
    Plain(Projection),
}

/// A feed-forward of all tokens.
#[derive(Clone, Debug)]
pub(super) struct Dense {
    /// Width of the hidden row.
    pub width: u64,
    pub hidden: Hidden,
    pub down: Projection,
}

/// A layer's feed-forward.
#[derive(Clone, Debug)]
pub(super) enum FeedForward {
    Dense(Box<Dense>),
    Experts(Box<Experts>),
}

impl FeedForward {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        hyper: &HyperParams,
        index: usize,
    ) -> Result<Self, ModelLoadError> {
        let mixture = hyper.mixture.as_ref().filter(|mixture| index >= mixture.dense_layers);
        if let Some(mixture) = mixture {
            let experts = Experts::load(loader, hyper, mixture, index)?;
            return Ok(Self::Experts(Box::new(experts)));
        }
        let stems = ["gate", "up", "down"].map(|part| format!("blk.{index}.ffn_{part}"));
        let dense = Dense::load(loader, hyper, &stems, hyper.feed_forward)?;
        Ok(Self::Dense(Box::new(dense)))
    }
}

impl Dense {
    /// `stems`: of the tensors of gate, up and down.
    pub(super) fn load(
        loader: &mut Loader<'_>,
        hyper: &HyperParams,
        stems: &[String; 3],
        hidden: u64,
    ) -> Result<Self, ModelLoadError> {
        let width = hyper.embedding;
        let [gate, up, down] = stems;
        Ok(Self {
            width: hidden,
            hidden: match hyper.mlp {
                Mlp::Gelu => Hidden::Plain(Projection::load(loader, up, width, hidden)?),
                Mlp::SwiGlu | Mlp::GeGlu => load_gated(loader, hyper, [gate, up], hidden)?,
            },
            down: Projection::load(loader, down, hidden, width)?,
        })
    }
}

/// Gate and up as one alternating matrix where type and bias allow it.
fn load_gated(
    loader: &mut Loader<'_>,
    hyper: &HyperParams,
    stems: [&String; 2],
    hidden: u64,
) -> Result<Hidden, ModelLoadError> {
    let width = hyper.embedding;
    let has_bias = stems.iter().any(|stem| loader.has(&format!("{stem}.bias")));
    if has_bias {
        let gate = Projection::load(loader, stems[0], width, hidden)?;
        let up = Projection::load(loader, stems[1], width, hidden)?;
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
        match &layer.feed_forward {
            FeedForward::Dense(dense) => {
                let lora_deltas = &layer.lora_deltas;
                self.dense_hidden(recording, dense, input, &lora_deltas.gate_up);
                let hidden = self.model.scratch.hidden;
                let after = layer.feed_forward_after;
                self.join_stream(recording, (&dense.down, &lora_deltas.down), hidden, after);
            }
            FeedForward::Experts(experts) => {
                assert!(layer.feed_forward_after.is_none(), "no family has both");
                self.experts(recording, experts, input);
            }
        }
    }

    /// The hidden rows of `input`.
    pub(super) fn dense_hidden(
        &self,
        recording: &mut Recording,
        dense: &Dense,
        input: Input,
        lora_deltas: &[Update],
    ) {
        let (hyper, scratch) = (&self.model.hyper, &self.model.scratch);
        let width = dense.width;
        let (out, caps) = (scratch.hidden, &self.model.capabilities);
        let both = (scratch.gate_up, 2 * width);
        let apart = Glu::apart(scratch.gate_up, out, width, hyper.mlp == Mlp::GeGlu);
        match &dense.hidden {
            Hidden::Gated(matrix) => {
                let projection = Projection { matrix: *matrix, bias: None, offset: 0 };
                if self.uses(lora_deltas) {
                    self.matmul(recording, &projection, input, both, Epilogue::Store);
                    self.update(recording, lora_deltas, input, both, 1.0);
                    let glu = Glu { group: matrix.layout.lanes, ..apart };
                    glu::record(recording, caps, &glu, self.shape.tokens);
                } else {
                    let epilogue = if apart.gelu { Epilogue::GeGlu } else { Epilogue::SwiGlu };
                    self.matmul(recording, &projection, input, (out, width), epilogue);
                }
            }
            Hidden::Plain(up) => {
                self.matmul(recording, up, input, (out, width), Epilogue::Gelu);
            }
            Hidden::GatedApart(projections) => {
                for projection in projections {
                    self.matmul(recording, projection, input, both, Epilogue::Store);
                }
                self.update(recording, lora_deltas, input, both, 1.0);
                glu::record(recording, caps, &apart, self.shape.tokens);
            }
        }
    }
}
