//! GPT-2's spelling of bytes as printable characters: how a byte-level vocabulary writes its tokens.
//!
//! Invariant: a one-to-one map between 256 bytes and 256 characters. Source: `bytes_to_unicode` in openai/gpt-2, src/encoder.py.

/// The character that stands for each byte: printable bytes stand for themselves, the others follow from U+0100 on.
pub const BYTE_CHARS: [char; 256] = byte_chars();

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

const fn byte_chars() -> [char; 256] {
    let mut out = ['\0'; 256];
    let mut next = 0x100u32;
    let mut byte = 0usize;
    while byte < 256 {
        let code = if is_printable(byte as u8) {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        out[byte] = match char::from_u32(code) {
            Some(c) => c,
            None => '\u{fffd}', // never: all codes are below 0x144
        };
        byte += 1;
    }
    out
}

/// The byte that `c` stands for, if it stands for one.
pub fn byte_of(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0..=0xff if is_printable(code as u8) => Some(code as u8),
        // The unprintable bytes in ascending order: 0..=32, 127..=160, 173.
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 127) as u8),
        0x143 => Some(173),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_characters_map_one_to_one() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of(BYTE_CHARS[byte as usize]), Some(byte));
        }
        assert_eq!(BYTE_CHARS[b' ' as usize], 'Ġ');
        assert_eq!(BYTE_CHARS[b'\n' as usize], 'Ċ');
        assert_eq!((0..0x400).filter_map(char::from_u32).filter_map(byte_of).count(), 256);
    }
}
