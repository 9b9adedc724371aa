//! Device memory that is left to others.

use serde::{Deserialize, Serialize};

/// Device memory that hob leaves to other programs: `5%`, `512MiB` or `2GiB`; empty: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MemoryReserve {
    /// Hundredths of what the device has.
    Percent(u8),
    /// MiB.
    Mib(u32),
}

impl MemoryReserve {
    /// None at all.
    pub const NONE: Self = Self::Mib(0);

    /// Its bytes, of a device that has `total_bytes`.
    #[must_use]
    pub fn bytes_of(self, total_bytes: u64) -> u64 {
        match self {
            Self::Percent(percent) => total_bytes / 100 * u64::from(percent),
            Self::Mib(mib) => u64::from(mib) << 20,
        }
    }
}

impl Default for MemoryReserve {
    fn default() -> Self {
        Self::Percent(5)
    }
}

impl TryFrom<String> for MemoryReserve {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const WANTED: &str = "a number with %, MiB or GiB behind it";
        if text.is_empty() {
            return Ok(Self::NONE);
        }
        let split = text.find(|c: char| !c.is_ascii_digit()).ok_or(WANTED)?;
        let (count, unit) = (text[..split].parse::<u32>(), text[split..].trim_start());
        match (count, unit) {
            (Ok(percent @ 0..=90), "%") => Ok(Self::Percent(percent as u8)),
            (Ok(mib), "MiB") => Ok(Self::Mib(mib)),
            (Ok(gib @ 0..=0x3f_ffff), "GiB") => Ok(Self::Mib(gib << 10)),
            _ => Err(WANTED),
        }
    }
}

impl From<MemoryReserve> for String {
    fn from(reserve: MemoryReserve) -> Self {
        match reserve {
            MemoryReserve::Mib(0) => Self::new(),
            MemoryReserve::Mib(mib) => format!("{mib}MiB"),
            MemoryReserve::Percent(percent) => format!("{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_a_share_or_an_amount() {
        let bytes = |text: &str| {
            MemoryReserve::try_from(text.to_owned()).map(|reserve| reserve.bytes_of(8 << 30))
        };
        assert_eq!(bytes(""), Ok(0));
        assert_eq!(bytes("10%"), Ok((8_u64 << 30) / 100 * 10));
        assert_eq!(bytes("512 MiB"), Ok(512 << 20));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        for wrong in ["5", "%", "91%", "1 GB", "-1%", "99999999999MiB", "5% "] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
