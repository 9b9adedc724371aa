//! Which of a device's queues hob takes: one to compute on, and one for uploads.

use ash::vk;

use super::physical_device::Candidate;

/// Capabilities allowed in an upload queue's family. Families that also do graphics or video serve
/// other clients.
const UPLOADING: vk::QueueFlags = vk::QueueFlags::from_raw(
    vk::QueueFlags::TRANSFER.as_raw()
        | vk::QueueFlags::COMPUTE.as_raw()
        | vk::QueueFlags::SPARSE_BINDING.as_raw()
        | vk::QueueFlags::PROTECTED.as_raw(),
);

/// The families of a device's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queues {
    /// Computes: without graphics if possible.
    pub compute: u32,
    /// Valid bits of its timestamps.
    pub timestamp_bits: u32,
    /// Takes uploads: transfers alone if possible. `None`: the queue that computes does.
    pub transfer: Option<u32>,
}

impl Queues {
    /// Chooses among a device's families; `None` where none computes.
    pub(super) fn choose(families: &[vk::QueueFamilyProperties]) -> Option<Self> {
        let usable = || (0..).zip(families).filter(|(_, family)| family.queue_count > 0);
        let computes = |family: &vk::QueueFamilyProperties| {
            family.queue_flags.contains(vk::QueueFlags::COMPUTE)
        };
        let (compute, family) = usable()
            .filter(|(_, family)| computes(family))
            .min_by_key(|(_, family)| family.queue_flags.contains(vk::QueueFlags::GRAPHICS))?;
        let copies = |flags: vk::QueueFlags| {
            flags.intersects(vk::QueueFlags::TRANSFER | vk::QueueFlags::COMPUTE)
                && UPLOADING.contains(flags)
        };
        let transfer = usable()
            .filter(|(index, family)| *index != compute && copies(family.queue_flags))
            .min_by_key(|(_, family)| computes(family))
            .map(|(index, _)| index);
        Some(Self { compute, timestamp_bits: family.timestamp_valid_bits, transfer })
    }
}

impl Candidate {
    /// The families whose queues are in use, the one that computes first; all buffers are shared
    /// by them.
    pub(super) fn families(&self) -> Vec<u32> {
        [self.queues.compute].into_iter().chain(self.queues.transfer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPHICS: u32 = 1;
    const COMPUTE: u32 = 2;
    const TRANSFER: u32 = 4;
    const SPARSE: u32 = 8;
    const DECODE: u32 = 0x20;
    const OPTICAL_FLOW: u32 = 0x100;

    fn choose(families: &[u32]) -> Option<(u32, Option<u32>)> {
        let families: Vec<_> = families
            .iter()
            .map(|flags| {
                vk::QueueFamilyProperties::default()
                    .queue_flags(vk::QueueFlags::from_raw(*flags))
                    .queue_count(1)
                    .timestamp_valid_bits(64)
            })
            .collect();
        Queues::choose(&families).map(|queues| (queues.compute, queues.transfer))
    }

    #[test]
    fn uploads_take_the_family_that_does_least_else() {
        let all = GRAPHICS | COMPUTE | TRANSFER | SPARSE;
        // A software driver.
        assert_eq!(choose(&[all]), Some((0, None)));
        // A GPU of NVIDIA's: all, copies, compute, video, flow.
        let video = TRANSFER | SPARSE | DECODE;
        let flow = TRANSFER | SPARSE | OPTICAL_FLOW;
        let nvidia = [all, TRANSFER | SPARSE, COMPUTE | TRANSFER | SPARSE, video, flow];
        assert_eq!(choose(&nvidia), Some((2, Some(1))));
        // AMD's: all, compute, and copies where the driver offers them.
        assert_eq!(choose(&[all, COMPUTE | TRANSFER]), Some((1, None)), "one draws");
        assert_eq!(choose(&[all, COMPUTE | TRANSFER, TRANSFER]), Some((1, Some(2))));
        // Two that compute, of which one is left. Compute copies, whether its flags say so or not.
        assert_eq!(choose(&[COMPUTE, COMPUTE]), Some((0, Some(1))));
        // None is for copies without anything else to do.
        assert_eq!(choose(&[all, video]), Some((0, None)));
        assert_eq!(choose(&[TRANSFER, video]), None);
    }

    #[test]
    fn a_family_without_queues_is_none() {
        let family = |flags, count| {
            vk::QueueFamilyProperties::default().queue_flags(flags).queue_count(count)
        };
        let compute = family(vk::QueueFlags::COMPUTE, 1);
        let queues = Queues::choose(&[compute, family(vk::QueueFlags::TRANSFER, 0)]);
        assert_eq!(queues.map(|queues| queues.transfer), Some(None));
        assert_eq!(Queues::choose(&[family(vk::QueueFlags::COMPUTE, 0)]), None);
    }
}
