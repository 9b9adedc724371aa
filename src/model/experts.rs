//! Mixtures of experts: feed-forwards of which a router chooses a few for each token.

use super::ModelLoadError;
use super::feed_forward::Dense;
use super::forward::{Input, Step};
use super::hyper::{HyperParams, Mlp};
use super::keys::Keys;
use super::layers::Projection;
use super::loader::{Arrangement, Loader, Part};
use super::scratch::MixtureScratch;
use crate::gpu::{BufferSlice, Recording};
use crate::kernels::glu::{self, Glu};
use crate::kernels::matmul::Epilogue;
use crate::kernels::matmul_experts::{self, MatmulExperts, Routes};
use crate::kernels::moe_combine::{self, MoeCombine};
use crate::kernels::moe_route::{self, Router};
use crate::kernels::{PackedExperts, moe_lists};

/// Most experts of a layer: twice as many as in any model known.
pub(super) const EXPERTS_MAX: u32 = 1024;

/// The shape of the layers' mixtures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixture {
    /// Routing function.
    pub router: Router,
    /// Width of an expert.
    pub hidden: u64,
    /// Width of the expert that all tokens share; 0 where there is none.
    pub shared_hidden: u64,
    /// True if the shared expert's result is weighed by a gate of its own.
    pub shared_gate: bool,
    /// Layers at the start that have a plain feed-forward instead.
    pub dense_layers: usize,
}

impl Mixture {
    /// Reads how many experts there are and how many a token has, where the file has experts at
    /// all; the family then changes what it does otherwise than Mixtral.
    pub(super) fn read(
        keys: &Keys<'_>,
        hyper: &HyperParams,
    ) -> Result<Option<Self>, ModelLoadError> {
        let count = keys.metadata().opt_u32(&keys.name("expert_count"))?;
        let used = keys.metadata().opt_u32(&keys.name("expert_used_count"))?;
        if count.unwrap_or(0) == 0 && used.unwrap_or(0) == 0 {
            return Ok(None);
        }
        if count.unwrap_or(0) == 0 {
            let wanted = "0, or an expert_count to choose from";
            return Err(keys.refuse("expert_used_count", wanted, used.unwrap_or(0)));
        }
        let experts = keys.count("expert_count", EXPERTS_MAX)?;
        let used = keys.count("expert_used_count", experts)?;
        let router = Router { experts, used, sigmoid: false, normalise: true, scale: 1.0 };
        Ok(Some(Self {
            router,
            hidden: hyper.feed_forward,
            shared_hidden: 0,
            shared_gate: false,
            dense_layers: 0,
        }))
    }

    /// The same for architectures that always have experts.
    pub(super) fn require(keys: &Keys<'_>, hyper: &HyperParams) -> Result<Self, ModelLoadError> {
        let found = Self::read(keys, hyper)?;
        found.ok_or_else(|| keys.refuse("expert_count", "experts", "none"))
    }
}

/// Computation of the experts' hidden rows from the input.
#[derive(Clone, Debug)]
enum Hidden {
    /// Groups of gate and up in turn: the activation is an epilogue of the matmul.
    Gated(PackedExperts),
    /// Gate and up by two matmuls, then the activation.
    GatedApart([PackedExperts; 2]),
}

/// The expert that all tokens share.
#[derive(Clone, Debug)]
struct Shared {
    feed_forward: Dense,
    /// Makes the logit of its weight.
    gate: Option<Projection>,
}

/// The mixture of one layer.
#[derive(Clone, Debug)]
pub(super) struct Experts {
    router: Projection,
    hidden: Hidden,
    down: PackedExperts,
    shared: Option<Shared>,
}

impl Experts {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        hyper: &HyperParams,
        mixture: &Mixture,
        index: usize,
    ) -> Result<Self, ModelLoadError> {
        let (width, hidden) = (hyper.embedding, mixture.hidden);
        let stem = format!("blk.{index}.ffn_");
        let count = mixture.router.experts;
        let router = Projection::load(loader, &format!("{stem}gate_inp"), width, count.into())?;
        let gate = expert_parts(loader, &format!("{stem}gate"), [width, hidden], count)?;
        let up = expert_parts(loader, &format!("{stem}up"), [width, hidden], count)?;
        let down = expert_parts(loader, &format!("{stem}down"), [hidden, width], count)?;
        let hidden = if loader.can_join(&[gate[0], up[0]]) {
            let both: Vec<_> = gate.iter().zip(&up).map(|(gate, up)| [*gate, *up]).collect();
            Hidden::Gated(loader.pack_experts(&both, Arrangement::Alternating)?)
        } else {
            let gate: Vec<_> = gate.iter().map(|part| [*part]).collect();
            let up: Vec<_> = up.iter().map(|part| [*part]).collect();
            Hidden::GatedApart([
                loader.pack_experts(&gate, Arrangement::Stacked)?,
                loader.pack_experts(&up, Arrangement::Stacked)?,
            ])
        };
        let down: Vec<_> = down.iter().map(|part| [*part]).collect();
        let down = loader.pack_experts(&down, Arrangement::Stacked)?;
        let shared = match mixture.shared_hidden {
            0 => None,
            _ => Some(Shared::load(loader, hyper, mixture, &stem)?),
        };
        Ok(Self { router, hidden, down, shared })
    }
}

impl Shared {
    fn load(
        loader: &mut Loader<'_>,
        hyper: &HyperParams,
        mixture: &Mixture,
        stem: &str,
    ) -> Result<Self, ModelLoadError> {
        let gate = if mixture.shared_gate {
            let name = format!("{stem}gate_inp_shexp");
            Some(Projection::load(loader, &name, hyper.embedding, 1)?)
        } else {
            None
        };
        let names = ["gate", "up", "down"].map(|part| format!("{stem}{part}_shexp"));
        let feed_forward = Dense::load(loader, hyper, &names, mixture.shared_hidden)?;
        Ok(Self { feed_forward, gate })
    }
}

/// The rows of each expert, of matrices `[row_len, rows]`: in one tensor of all, or, as files had
/// them at first, in a tensor each.
fn expert_parts<'f>(
    loader: &mut Loader<'f>,
    stem: &str,
    [row_len, rows]: [u64; 2],
    count: u32,
) -> Result<Vec<Part<'f>>, ModelLoadError> {
    let first = format!("{stem}.0.weight");
    if !loader.has(&first) {
        let dims = [row_len, rows, count.into()];
        let tensor = loader.tensor(&format!("{stem}_exps.weight"), &dims)?;
        let part = |expert: u32| Part { tensor, first: u64::from(expert) * rows, rows };
        return Ok((0..count).map(part).collect());
    }
    let mut parts: Vec<Part<'f>> = Vec::with_capacity(count as usize);
    for expert in 0..count {
        let name = format!("{stem}.{expert}.weight");
        let part = Part::whole(loader.tensor(&name, &[row_len, rows])?);
        let (found, wanted) = (part.tensor.dtype, parts.first().unwrap_or(&part).tensor.dtype);
        if found != wanted {
            let wanted = format!("{}, the type of {first}", wanted.name());
            return Err(loader.refuse(&name, &wanted, found.name()));
        }
        parts.push(part);
    }
    Ok(parts)
}

impl Step<'_> {
    /// The mixture's result for `input`, added to the stream.
    pub(super) fn experts(&self, recording: &mut Recording, experts: &Experts, input: Input) {
        let model = self.model;
        let (caps, tokens) = (&model.capabilities, self.shape.tokens);
        let mixture = model.hyper.mixture.as_ref().expect("a layer with experts");
        let scratch = model.scratch.mixture.as_ref().expect("a layer with experts");
        let router = &mixture.router;
        let logits = (scratch.logits, router.experts.into());
        self.matmul(recording, &experts.router, input, logits, Epilogue::Store);
        let chosen = (scratch.chosen, scratch.weights);
        moe_route::record(recording, caps, router, scratch.logits, chosen, tokens);
        let routes = self.routes(recording, router, scratch);
        self.expert_hidden(recording, experts, input, routes);
        let width = model.hyper.embedding;
        let down = MatmulExperts {
            x: scratch.hidden,
            x_stride: mixture.hidden,
            y: scratch.results,
            y_stride: width,
            ..self.expert_matmul(&experts.down, routes)
        };
        matmul_experts::record(recording, caps, &down);
        let shared = experts.shared.as_ref().map(|shared| self.shared(recording, shared, input));
        let combine = MoeCombine {
            x: scratch.results,
            weights: scratch.weights,
            shared,
            y: model.scratch.stream,
            dim: width,
            used: router.used,
            factor: model.hyper.residual_factor,
            residual: true,
        };
        moe_combine::record(recording, caps, &combine, tokens);
    }

    /// Lists the routes of each expert where there are so many that some have several.
    fn routes(
        &self,
        recording: &mut Recording,
        router: &Router,
        scratch: &MixtureScratch,
    ) -> Routes {
        let tokens = self.shape.tokens;
        let routes = tokens * router.used;
        if routes <= router.experts {
            return Routes::Each(scratch.chosen);
        }
        let sizes = (routes, router.experts, tokens);
        let caps = &self.model.capabilities;
        moe_lists::record(recording, caps, scratch.chosen, scratch.lists, sizes);
        Routes::Listed(scratch.lists, tokens)
    }

    /// A matmul with the experts' matrices that reads a row for each route.
    fn expert_matmul<'w>(&self, weights: &'w PackedExperts, routes: Routes) -> MatmulExperts<'w> {
        let stream = self.model.scratch.stream;
        let mixture = self.model.hyper.mixture.as_ref().expect("a layer with experts");
        MatmulExperts {
            weights,
            routes,
            route_count: self.shape.tokens * mixture.router.used,
            used: 1,
            x: stream,
            x_stride: 0,
            y: stream,
            y_stride: 0,
            y_offset: 0,
            norm: None,
            epilogue: Epilogue::Store,
            workspace: self.workspace(false),
        }
    }

    /// The hidden row of each route.
    fn expert_hidden(
        &self,
        recording: &mut Recording,
        experts: &Experts,
        input: Input,
        routes: Routes,
    ) {
        let (hyper, caps) = (&self.model.hyper, &self.model.capabilities);
        let mixture = hyper.mixture.as_ref().expect("a layer with experts");
        let scratch = self.model.scratch.mixture.as_ref().expect("a layer with experts");
        let matmul = |weights| MatmulExperts {
            used: mixture.router.used,
            x: input.x,
            x_stride: hyper.embedding,
            norm: input.gain.map(|gain| (gain, hyper.epsilon)),
            ..self.expert_matmul(weights, routes)
        };
        let (hidden, gelu) = (mixture.hidden, hyper.mlp == Mlp::GeGlu);
        match &experts.hidden {
            Hidden::Gated(weights) => {
                let epilogue = if gelu { Epilogue::GeGlu } else { Epilogue::SwiGlu };
                let out = matmul(weights);
                let out = MatmulExperts { y: scratch.hidden, y_stride: hidden, epilogue, ..out };
                matmul_experts::record(recording, caps, &out);
            }
            Hidden::GatedApart(both) => {
                for (weights, y_offset) in both.iter().zip([0, hidden]) {
                    let (y, y_stride) = (scratch.gate_up, 2 * hidden);
                    let out = MatmulExperts { y, y_stride, y_offset, ..matmul(weights) };
                    matmul_experts::record(recording, caps, &out);
                }
                let rows = self.shape.tokens * mixture.router.used;
                let (from, to) = (scratch.gate_up, scratch.hidden);
                glu::record(recording, caps, &Glu::apart(from, to, hidden, gelu), rows);
            }
        }
    }

    /// The shared expert's result, and the logits of its weight.
    fn shared(
        &self,
        recording: &mut Recording,
        shared: &Shared,
        input: Input,
    ) -> (BufferSlice, Option<BufferSlice>) {
        let scratch = &self.model.scratch;
        let gates = scratch.mixture.as_ref().expect("a layer with experts").shared_gates;
        self.dense_hidden(recording, &shared.feed_forward, input, &[]);
        let (x, y) = (Input::bare(scratch.hidden), (scratch.block, self.model.hyper.embedding));
        self.matmul(recording, &shared.feed_forward.down, x, y, Epilogue::Store);
        if let Some(gate) = &shared.gate {
            self.matmul(recording, gate, input, (gates, 1), Epilogue::Store);
        }
        (scratch.block, shared.gate.as_ref().map(|_| gates))
    }
}
