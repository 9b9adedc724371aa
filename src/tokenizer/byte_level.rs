//! The byte-level alphabet: each byte as one printable character, as GPT-2's vocabularies write
//! them.
//!
//! Printable Latin-1 stands for itself; the 68 other bytes take U+0100 and up, in order.

/// Bytes that stand for themselves.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character that stands for `byte`.
pub(super) fn byte_to_char(byte: u8) -> char {
    if is_printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|b| !is_printable(*b)).count();
    char::from_u32(0x100 + rank as u32).expect("U+0100 to U+0143 are characters")
}

/// The byte that `c` stands for, if it is of the alphabet.
pub(super) fn char_to_byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    match u8::try_from(code) {
        Ok(byte) => is_printable(byte).then_some(byte),
        // Ranks 0..=32 are the control bytes and space, 33..=66 are 0x7F..=0xA0, 67 is 0xAD.
        Err(_) => match code.checked_sub(0x100)? {
            rank @ 0..=32 => Some(rank as u8),
            rank @ 33..=66 => Some((rank - 33 + 0x7F) as u8),
            67 => Some(0xAD),
            _ => None,
        },
    }
}

/// Appends the bytes that a byte-level token's text stands for.
///
/// A character outside the alphabet (added tokens are written plainly) stands for its own UTF-8.
pub(super) fn decode_into(text: &str, out: &mut Vec<u8>) {
    for c in text.chars() {
        match char_to_byte(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character_and_comes_back() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=u8::MAX {
            let c = byte_to_char(byte);
            assert!(seen.insert(c), "{c:?} twice");
            assert_eq!(char_to_byte(c), Some(byte));
        }
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
        assert_eq!(char_to_byte(' '), None);
        assert_eq!(char_to_byte('\u{144}'), None);
    }
}
