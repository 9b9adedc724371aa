//! How urgent a request is.

/// How urgent a request is: who is served first, and by how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Somebody waits for each word.
    Interactive,
    /// The default.
    #[default]
    Normal,
    /// Nobody waits: what is left of the device.
    Background,
}

impl Priority {
    /// All, most urgent first.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Normal, Self::Background];

    /// Its share of the device where all three have work: parts of the sum of all.
    #[must_use]
    pub fn weight(self) -> u32 {
        match self {
            Self::Interactive => 16,
            Self::Normal => 4,
            Self::Background => 1,
        }
    }
}
