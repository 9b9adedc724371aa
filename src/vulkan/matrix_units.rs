//! Which cooperative matrices a device has, and which of them are used.

use ash::{khr, vk};

use super::instance::Instance;
use crate::gpu::MatrixUnits;

/// Intel's units hold matrices in the smallest subgroups alone; all others in any.
const VENDOR_INTEL: u32 = 0x8086;

/// Subgroup sizes of a device.
pub(super) struct SubgroupSizes {
    /// Subgroup size of kernels without cooperative matrices.
    pub lanes: u32,
    /// The smallest that can be asked for; `None` where none can.
    pub smallest: Option<u32>,
}

/// The largest shape of f16 matrices with f32 sums that subgroups multiply; `None` where there is
/// none, or the driver's answer is no answer.
pub(super) fn find(
    instance: &Instance,
    raw: vk::PhysicalDevice,
    vendor: u32,
    sizes: &SubgroupSizes,
) -> Option<MatrixUnits> {
    let functions = khr::cooperative_matrix::Instance::new(&instance.entry, &instance.raw);
    // SAFETY: the device belongs to the live instance and offers the extension.
    let shapes = unsafe { functions.get_physical_device_cooperative_matrix_properties(raw) };
    let subgroup = if vendor == VENDOR_INTEL { sizes.smallest? } else { sizes.lanes };
    choose(&shapes.ok()?, subgroup)
}

fn choose(shapes: &[vk::CooperativeMatrixPropertiesKHR<'_>], subgroup: u32) -> Option<MatrixUnits> {
    let (half, single) = (vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT32);
    let fits = |shape: &&vk::CooperativeMatrixPropertiesKHR<'_>| {
        let types = (shape.a_type, shape.b_type, shape.c_type, shape.result_type);
        let sizes = [shape.m_size, shape.n_size, shape.k_size];
        types == (half, half, single, single)
            && shape.scope == vk::ScopeKHR::SUBGROUP
            && sizes.iter().all(|size| matches!(size, 8 | 16 | 32))
    };
    let found = shapes.iter().filter(fits);
    // Larger ones than 16 x 16 are made of several, and leave tiles of fewer sizes.
    let rank = |shape: &&vk::CooperativeMatrixPropertiesKHR<'_>| {
        let (results, k) = (shape.m_size * shape.n_size, shape.k_size);
        (results <= 256, if results <= 256 { results } else { u32::MAX - results }, k)
    };
    let best = found.max_by_key(rank)?;
    Some(MatrixUnits { m: best.m_size, n: best.n_size, k: best.k_size, subgroup })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(
        [m, n, k]: [u32; 3],
        sum: vk::ComponentTypeKHR,
    ) -> vk::CooperativeMatrixPropertiesKHR<'static> {
        vk::CooperativeMatrixPropertiesKHR::default()
            .m_size(m)
            .n_size(n)
            .k_size(k)
            .a_type(vk::ComponentTypeKHR::FLOAT16)
            .b_type(vk::ComponentTypeKHR::FLOAT16)
            .c_type(sum)
            .result_type(sum)
            .scope(vk::ScopeKHR::SUBGROUP)
    }

    #[test]
    fn the_largest_usual_shape_with_f32_sums_is_used() {
        let [half, single] = [vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT32];
        let sizes = |shapes: &[_]| choose(shapes, 32).map(|units| [units.m, units.n, units.k]);
        let usual = [shape([16, 8, 8], single), shape([16, 8, 16], single)];
        assert_eq!(sizes(&usual), Some([16, 8, 16]));
        let more = [usual[0], shape([16, 16, 16], half), shape([32, 32, 16], single)];
        assert_eq!(sizes(&more), Some([16, 8, 8]));
        let all = [more[2], shape([16, 16, 16], single), usual[1]];
        assert_eq!(sizes(&all), Some([16, 16, 16]));
        assert_eq!(sizes(&[shape([16, 16, 16], half)]), None);
        let workgroup = shape([16, 16, 16], single).scope(vk::ScopeKHR::WORKGROUP);
        assert_eq!(sizes(&[workgroup, shape([12, 8, 8], single)]), None);
    }
}
