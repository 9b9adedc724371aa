//! How the device is to choose tokens: what is uploaded for it, and when it begins.

use super::{Flight, Runner};
use crate::gpu::DeviceError;
use crate::kernels::mask;
use crate::kernels::sampling::{NONE, PENALTIES_MAX, Penalty, Row, penalties_room};
use crate::model::Choosing;

/// A row of logits whose token the device is to choose.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Settings of the row.
    pub row: Row,
    /// Tokens whose logits change, each once; at most [`PENALTIES_MAX`].
    pub penalties: Vec<Penalty>,
    /// A mask says which tokens may be chosen; it comes by `Runner::choose`.
    pub masked: bool,
}

impl Flight {
    /// True if the tokens are chosen only once masks are known.
    pub(in crate::engine) fn waits_for_masks(&self) -> bool {
        self.choice.is_some()
    }
}

impl Wanted {
    fn is_penalised(&self) -> bool {
        !self.penalties.is_empty() || self.row.penalty_pending != NONE
    }
}

impl Runner {
    /// Says how tokens are to be chosen.
    pub(in crate::engine) fn upload_wanted(
        &mut self,
        buffer_set: usize,
        wanted: &[Wanted],
    ) -> Result<Choosing, DeviceError> {
        let inputs = self.model.inputs(buffer_set);
        let penalised = wanted.iter().any(Wanted::is_penalised);
        let mut lists: Vec<Penalty> = Vec::new();
        let mut rows = Vec::with_capacity(wanted.len());
        let mut masks = 0;
        for Wanted { row, penalties, masked } in wanted {
            rows.push(Row {
                penalties: penalties.len() as u32,
                penalties_at: lists.len() as u32,
                mask: if *masked { masks } else { NONE },
                ..*row
            });
            lists.extend(penalties);
            masks += u32::from(*masked);
        }
        self.upload(inputs.wanted, bytemuck::cast_slice(&rows))?;
        self.upload(inputs.penalties, bytemuck::cast_slice(&lists))?;
        Ok(Choosing::Device { penalised, masked: masks > 0 })
    }

    /// True if the device has room for what these rows want.
    pub(in crate::engine) fn has_room_for(&self, wanted: &[Wanted]) -> bool {
        let listed = wanted.iter().map(|wanted| wanted.penalties.len());
        let room = penalties_room(self.model.limits().logit_rows_max);
        listed.clone().all(|count| count <= PENALTIES_MAX) && listed.sum::<usize>() <= room
    }

    /// Words of a row's mask.
    pub(in crate::engine) fn mask_words(&self) -> usize {
        mask::words(self.model.vocab() as u32) as usize
    }

    /// Has the device choose the tokens of a batch that waits for masks: one for each row that is
    /// masked, in their order, and one behind the other.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub(in crate::engine) fn choose(
        &mut self,
        flight: &mut Flight,
        masks: &[u32],
    ) -> Result<(), DeviceError> {
        if let Some(part) = flight.choice.take() {
            self.upload_masks(flight.shape.buffer_set, masks)?;
            flight.ticket = self.executor.submit(part)?;
        }
        Ok(())
    }

    /// Says which tokens may be chosen.
    pub(in crate::engine) fn upload_masks(
        &mut self,
        buffer_set: usize,
        masks: &[u32],
    ) -> Result<(), DeviceError> {
        let inputs = self.model.inputs(buffer_set);
        self.upload(inputs.masks, bytemuck::cast_slice(masks))
    }
}
