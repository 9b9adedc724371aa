//! How urgent a request is.

/// Priority of a request: order of service and share of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Somebody waits for each word.
    Interactive,
    /// Default priority.
    #[default]
    Normal,
    /// Nobody waits: what is left of the device.
    Background,
}

impl Priority {
    /// All, most urgent first.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Normal, Self::Background];

    /// Weight of its share of the device when several priorities have work.
    #[must_use]
    pub fn weight(self) -> u32 {
        match self {
            Self::Interactive => 16,
            Self::Normal => 4,
            Self::Background => 1,
        }
    }
}
