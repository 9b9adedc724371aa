//! `shaders/matmul.comp` with EXPERTS: matmuls with the matrices of a mixture's experts. Those of
//! experts' lists may be recorded in other tiers, as plain matmuls are (`matmul_tiled`).
//!
//! Each token is sent to `used` of the experts. A route is one such pair, numbered
//! `token * used + place`; what the matmuls read and write has a row for each route.

use bytemuck::{Pod, Zeroable};

use super::matmul::{self, Epilogue, Operands, Tier, TileConfig};
use super::{by_format_and_device, or_unused, spirv, tuned, u32_of};
use crate::gpu::{BufferHandle, BufferSlice, Capabilities, Dispatch, Recording};
use crate::tensor::layout::Layout;

/// Push constants; those of a plain matmul are the first of them.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub matmul: matmul::Params,
    pub expert_first: u32,
    pub expert_count: u32,
    pub used: u32,
    pub list_max: u32,
    pub experts: u32,
}

impl Params {
    /// Those of any matmul. A plain one has no experts, and a row of x for each of y.
    #[must_use]
    pub fn of(matmul: &Dispatch) -> Self {
        let plain =
            Self::plain(bytemuck::pod_read_unaligned(&matmul.push[..size_of::<matmul::Params>()]));
        let all = bytemuck::try_pod_read_unaligned(&matmul.push);
        all.unwrap_or(plain)
    }

    /// Those of a plain matmul.
    #[must_use]
    pub fn plain(matmul: matmul::Params) -> Self {
        Self { matmul, expert_first: 0, expert_count: 0, used: 1, list_max: 0, experts: 0 }
    }

    /// True if it has experts.
    #[must_use]
    pub fn has_experts(&self) -> bool {
        self.expert_count > 0
    }

    /// True if a workgroup takes the list of an expert.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.list_max > 0
    }

    /// Rows of x.
    #[must_use]
    pub fn x_rows(&self) -> u32 {
        self.matmul.tokens / self.used
    }

    /// Columns of a matrix's matmuls: tokens, the routes that a list has on average, or one.
    #[must_use]
    pub fn columns(&self) -> u32 {
        match (self.has_experts(), self.is_listed()) {
            (false, _) => self.matmul.tokens,
            (true, true) => self.matmul.tokens.div_ceil(self.experts),
            (true, false) => 1,
        }
    }

    /// Puts them in the place of a dispatch's own.
    pub fn put(&self, dispatch: &mut Dispatch) {
        let bytes = dispatch.push.len();
        dispatch.push.copy_from_slice(&bytemuck::bytes_of(self)[..bytes]);
    }
}

const _: () = assert!(spirv::MATMUL_F32_EXPERTS_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::MATMUL_F32_EXPERTS_BINDINGS == 6);
const _: () = assert!(spirv::MATMUL_F32_EXPERTS_SPECS == 9);

/// The matrices of all experts: of one type and shape, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct PackedExperts {
    /// Layout of a single expert's matrix.
    pub layout: Layout,
    /// Number of experts.
    pub experts: u32,
    /// Plane of quads.
    pub quads: BufferHandle,
    /// Plane of words; `None` where the type has none.
    pub words: Option<BufferHandle>,
}

/// Experts whose matrices fit the device's largest binding together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertSlice {
    /// The first one.
    pub first: u32,
    /// Number of items.
    pub count: u32,
    /// Their part of the plane of quads.
    pub quads: BufferSlice,
    /// Their part of the plane of words, or of the quads where there are none.
    pub words: BufferSlice,
}

impl PackedExperts {
    /// True if every binding of such matrices fits the device.
    #[must_use]
    pub fn is_bindable(layout: &Layout, experts: u32, caps: &Capabilities) -> bool {
        Self::experts_a_slice(layout, experts, caps) > 0
    }

    /// Number of experts per binding such that the next one starts aligned; 0 if not even one fits.
    fn experts_a_slice(layout: &Layout, experts: u32, caps: &Capabilities) -> u32 {
        let planes = [layout.group_quad_bytes(), layout.group_word_bytes()]
            .map(|bytes| bytes * layout.groups());
        let largest = planes[0].max(planes[1]);
        let fitting = u32::try_from(caps.storage_range_max / largest).unwrap_or(u32::MAX);
        if fitting >= experts {
            return experts;
        }
        let aligned = |step: u32| {
            planes.iter().all(|bytes| (bytes * u64::from(step)).is_multiple_of(caps.storage_align))
        };
        // Alignments are powers of two.
        let step = (0..31).map(|shift| 1 << shift).find(|step| aligned(*step)).unwrap_or(u32::MAX);
        fitting / step * step
    }

    /// Cuts the experts into as few pieces as the device's bindings allow.
    ///
    /// # Panics
    /// If not even one can be bound, which the model's loader refuses.
    #[must_use]
    pub fn slices(&self, caps: &Capabilities) -> Vec<ExpertSlice> {
        let step = Self::experts_a_slice(&self.layout, self.experts, caps);
        assert!(step > 0, "an expert's matrix exceeds a binding");
        let plane = |buffer: BufferHandle, group_bytes: u64, first: u32, count: u32| {
            let bytes = group_bytes * self.layout.groups();
            let (offset, bytes) = (u64::from(first) * bytes, u64::from(count) * bytes);
            BufferSlice { buffer, offset, bytes }
        };
        let slice = |first: u32| {
            let count = step.min(self.experts - first);
            let quads = plane(self.quads, self.layout.group_quad_bytes(), first, count);
            let words = self
                .words
                .map_or(quads, |words| plane(words, self.layout.group_word_bytes(), first, count));
            ExpertSlice { first, count, quads, words }
        };
        (0..self.experts).step_by(step as usize).map(slice).collect()
    }
}

/// Routing of a batch's tokens to experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routes {
    /// u32 `[routes]`: the expert of each route. A workgroup takes one route.
    Each(BufferSlice),
    /// u32 `[experts, 1 + list_max]`: how many routes each expert has, and which. A workgroup takes
    /// all of an expert: its weights are read once for every tile of them.
    Listed(BufferSlice, u32),
}

/// One matmul: y\[r\] = epilogue(W\[expert(r)\] norm(x\[r / used\])) for every route r.
#[derive(Clone, Copy, Debug)]
pub struct MatmulExperts<'a> {
    /// Packed weight matrix.
    pub weights: &'a PackedExperts,
    /// Which route goes to which expert.
    pub routes: Routes,
    /// Routes of the batch.
    pub route_count: u32,
    /// Neighbouring routes that share a row of x: 1, or the experts of a token.
    pub used: u32,
    /// f32 `[routes / used, x_stride]`.
    pub x: BufferSlice,
    /// Floats between rows of x, a multiple of 4.
    pub x_stride: u64,
    /// f32 `[routes, y_stride]`.
    pub y: BufferSlice,
    /// Floats between rows of y.
    pub y_stride: u64,
    /// First column of y to write.
    pub y_offset: u64,
    /// RMS norm of x: gain, f32 `[row_len]`, and epsilon.
    pub norm: Option<(BufferSlice, f32)>,
    /// Operation fused behind the matmul.
    pub epilogue: Epilogue,
    /// Room for a narrower x, [`super::quantize_x::bytes`] for all its rows; without it matmuls are
    /// in f32.
    pub workspace: Option<BufferSlice>,
}

impl MatmulExperts<'_> {
    /// Tile configuration in f32, with columns for the average number of routes per expert.
    fn shape(&self, caps: &Capabilities) -> TileConfig {
        let columns = match self.routes {
            Routes::Each(_) => 1,
            Routes::Listed(..) => self.route_count.div_ceil(self.weights.experts),
        };
        TileConfig::choose(caps, &self.weights.layout, columns)
    }
}

/// Appends the matmul, in the shape chosen for the device.
pub fn record(recording: &mut Recording, caps: &Capabilities, matmul: &MatmulExperts<'_>) {
    let mut plain = Recording::new();
    record_scalar(&mut plain, caps, matmul, matmul.shape(caps));
    let workspace = matmul.workspace.is_some();
    let best = |matmul: &Dispatch| tuned::best(caps, matmul, workspace);
    tuned::append(recording, caps, plain, matmul.workspace, best);
}

/// Appends the matmul in a shape of any tier.
///
/// # Panics
/// If the device cannot run it, or it needs room for a narrower x and has none: the caller asked.
pub fn record_shaped(
    recording: &mut Recording,
    caps: &Capabilities,
    matmul: &MatmulExperts<'_>,
    shape: TileConfig,
) {
    let scalar = if shape.tier == Tier::Scalar { shape } else { matmul.shape(caps) };
    let mut plain = Recording::new();
    record_scalar(&mut plain, caps, matmul, scalar);
    tuned::append_in(recording, caps, plain, matmul.workspace, shape);
}

/// Routes of a matmul in f32 as evenly spread as can be, and where they are bound: what it may be
/// timed with when no router has chosen any. `None` for a matmul without experts.
#[must_use]
pub fn even_routes(matmul: &Dispatch) -> Option<(BufferSlice, Vec<u32>)> {
    let params = Params::of(matmul);
    params.has_experts().then_some(())?;
    let (routes, experts) = (params.matmul.tokens, params.experts);
    let words = if params.is_listed() {
        let list = |expert: u32| {
            let own: Vec<u32> = (expert..routes).step_by(experts as usize).collect();
            let unused = params.list_max as usize - own.len();
            [own.len() as u32].into_iter().chain(own).chain(std::iter::repeat_n(0, unused))
        };
        (0..experts).flat_map(list).collect()
    } else {
        (0..routes).map(|route| route % experts).collect()
    };
    Some((Operands::of(matmul).bias, words))
}

/// Appends the matmul in f32: one dispatch for each slice of the experts that can be bound.
fn record_scalar(
    recording: &mut Recording,
    caps: &Capabilities,
    matmul: &MatmulExperts<'_>,
    shape: TileConfig,
) {
    let layout = &matmul.weights.layout;
    let (kernel, pointers) = by_format_and_device("matmul", layout.dtype, "_experts", caps);
    let (gain, epsilon) = matmul.norm.unzip();
    let per_y = if matmul.epilogue.is_glu() { 2 } else { 1 };
    let row_tiles = layout.groups().div_ceil(u64::from(shape.rows));
    let (routes, listed, list_max) = match matmul.routes {
        Routes::Each(routes) => (routes, 0, 0),
        Routes::Listed(lists, list_max) => (lists, 1, list_max),
    };
    for slice in matmul.weights.slices(caps) {
        let columns = if listed == 1 { slice.count } else { matmul.route_count };
        let params = Params {
            matmul: matmul::Params {
                addresses: [[0; 2]; 3],
                units: u32_of(layout.units()),
                rows: u32_of(layout.rows / per_y),
                groups: u32_of(layout.groups()),
                tokens: matmul.route_count,
                x_stride: u32_of(matmul.x_stride / 4),
                y_stride: u32_of(matmul.y_stride),
                y_offset: u32_of(matmul.y_offset),
                blocks: u32_of(layout.row_len / 32),
                epsilon: epsilon.unwrap_or(0.0),
                y_scale: 1.0,
            },
            expert_first: slice.first,
            expert_count: slice.count,
            used: matmul.used,
            list_max,
            experts: matmul.weights.experts,
        };
        recording.dispatch(Dispatch {
            kernel,
            spec: vec![
                caps.lanes,
                shape.split,
                1,
                shape.rows,
                shape.tokens,
                u32::from(gain.is_some()),
                0,
                matmul.epilogue as u32,
                listed,
            ],
            bindings: vec![
                slice.quads,
                slice.words,
                matmul.x,
                matmul.y,
                or_unused(gain, matmul.x),
                routes,
            ],
            push: bytemuck::bytes_of(&params).to_vec(),
            pointers,
            groups: [columns, u32_of(row_tiles), 1],
        });
    }
}
