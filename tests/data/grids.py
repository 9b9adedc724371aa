"""Makes the tables of src/tensor/grids.rs out of gguf-py's, which are facts of the format.

    pip install gguf numpy && python tests/data/grids.py > src/tensor/grids.rs && rustfmt src/tensor/grids.rs

gguf-py keeps a grid as the indices of its values, of two bits (IQ1, IQ2) or four (IQ3) each, the
first value in the lowest bits of a byte.
"""

from gguf import quants

HEADER = '''//! Grids of the IQ types: the vectors of values that their blocks have the numbers of.
//!
//! Written by `tests/data/grids.py`. A grid is kept as the indices of its values: two bits each for
//! vectors of eight of three values (IQ1, IQ2), four bits each for vectors of four of eight values
//! (IQ3), the first in the lowest bits.
'''

NAMES = {
    "IQ1_S": ("IQ1", "IQ1_S and IQ1_M: indices of -1, 0, 1"),
    "IQ2_XXS": ("IQ2_XXS", "IQ2_XXS: indices of 8, 25, 43"),
    "IQ2_XS": ("IQ2_XS", "IQ2_XS: indices of 8, 25, 43"),
    "IQ2_S": ("IQ2_S", "IQ2_S: indices of 8, 25, 43"),
    "IQ3_XXS": ("IQ3_XXS", "IQ3_XXS: indices of 4, 12, 20, 28, 36, 44, 52, 62"),
    "IQ3_S": ("IQ3_S", "IQ3_S: indices of 1, 3, 5, 7, 9, 11, 13, 15"),
}

DECODER = '''
/// The bytes that hexadecimal digits stand for.
const fn bytes<const N: usize>(digits: &[u8]) -> [u8; N] {
    assert!(digits.len() == 2 * N, "two digits a byte");
    let mut out = [0; N];
    let mut at = 0;
    while at < N {
        out[at] = digit(digits[2 * at]) << 4 | digit(digits[2 * at + 1]);
        at += 1;
    }
    out
}

const fn digit(text: u8) -> u8 {
    if text >= b'a' { text - b'a' + 10 } else { text - b'0' }
}'''

print(HEADER)
for kind, (name, says) in NAMES.items():
    digits = getattr(quants, kind).grid_hex.decode()
    print(f"/// {says}.")
    print(f"pub(super) static {name}: [u8; {len(digits) // 2}] = bytes(")
    print('    b"\\')
    for at in range(0, len(digits), 92):
        end = "" if at + 92 >= len(digits) else "\\"
        print(f"    {digits[at : at + 92]}{end}" + ('",' if not end else ""))
    print(");\n")
print(DECODER.strip())
