//! Where a recording needs a barrier: pure bookkeeping, no Vulkan.

use super::limits::overlap;
use crate::gpu::{Access, BufferSlice, Command};

/// Slices touched since the last barrier.
#[derive(Debug, Default)]
pub(super) struct Hazards {
    touched: Vec<(BufferSlice, Access)>,
}

impl Hazards {
    /// Notes a command; returns whether a barrier must stand before it.
    pub(super) fn needs_barrier(&mut self, command: &Command) -> bool {
        let uses = uses(command);
        let conflict = uses.iter().any(|(slice, access)| {
            self.touched.iter().any(|(other, before)| {
                (*access == Access::Write || *before == Access::Write) && overlap(slice, other)
            })
        });
        if conflict {
            self.touched.clear();
        }
        for usage in uses {
            if !self.touched.contains(&usage) {
                self.touched.push(usage);
            }
        }
        conflict
    }
}

/// Buffers that a command accesses, with the kind of access.
pub(super) fn uses(command: &Command) -> Vec<(BufferSlice, Access)> {
    match command {
        Command::Dispatch(dispatch) => dispatch
            .bindings
            .iter()
            .copied()
            .zip(dispatch.kernel.bindings.iter().copied())
            .collect(),
        Command::Copy { from, to } => vec![(*from, Access::Read), (*to, Access::Write)],
        Command::Zero(slice) => vec![(*slice, Access::Write)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::BufferHandle;

    fn slice(buffer: u32, offset: u64, bytes: u64) -> BufferSlice {
        BufferSlice { buffer: BufferHandle(buffer), offset, bytes }
    }

    #[test]
    fn barriers_stand_only_where_ranges_conflict() {
        let mut hazards = Hazards::default();
        let copy = |from, to| Command::Copy { from, to };
        assert!(!hazards.needs_barrier(&copy(slice(0, 0, 16), slice(1, 0, 16))), "nothing before");
        assert!(!hazards.needs_barrier(&copy(slice(0, 0, 16), slice(1, 16, 16))), "apart");
        assert!(!hazards.needs_barrier(&copy(slice(0, 8, 16), slice(2, 0, 16))), "two reads");
        assert!(hazards.needs_barrier(&copy(slice(1, 8, 16), slice(3, 0, 16))), "read after write");
        assert!(!hazards.needs_barrier(&copy(slice(2, 0, 16), slice(4, 0, 16))), "settled above");
        assert!(hazards.needs_barrier(&Command::Zero(slice(1, 20, 4))), "write after read");
        assert!(hazards.needs_barrier(&Command::Zero(slice(1, 0, 64))), "write after write");
    }
}
