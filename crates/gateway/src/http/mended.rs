//! JSON as most readers take it, though its grammar does not: what Python's `json` writes by itself, and what careless hops put together.
//!
//! Invariant: what is strictly JSON is read as it is; what no common reader takes for JSON is not read.
// contract: C-6

use serde_json::Value;

/// Reads JSON in which a number may be `NaN`, `Infinity` or `-Infinity` (they become null), a text may have half of a surrogate pair (it
/// becomes U+FFFD), and an object may have one key twice (the last one counts). `None` if it is no JSON even so.
pub fn mended(json: &[u8]) -> Option<Value> {
    let mut plain = Vec::with_capacity(json.len());
    let mut rest = json;
    let mut in_text = false;
    while let Some((&byte, behind)) = rest.split_first() {
        let (put, taken): (&[u8], usize) = match byte {
            b'"' => {
                in_text = !in_text;
                (b"\"", 1)
            }
            b'\\' if in_text => escape(rest),
            b'N' if !in_text && rest.starts_with(b"NaN") => (b"null", 3),
            b'I' if !in_text && rest.starts_with(b"Infinity") => (b"null", 8),
            b'-' if !in_text && behind.starts_with(b"Infinity") => (b"null", 9),
            _ => (&rest[..1], 1),
        };
        plain.extend_from_slice(put);
        rest = &rest[taken..];
    }
    serde_json::from_slice(&plain).ok()
}

/// What stands for an escape at the beginning of `text`, and how long it is there.
fn escape(text: &[u8]) -> (&[u8], usize) {
    const UNKNOWN: &[u8] = br"\ufffd";
    match unit(text) {
        Some(0xd800..=0xdbff) if unit(&text[6..]).is_some_and(|low| (0xdc00..=0xdfff).contains(&low)) => (&text[..12], 12),
        Some(0xd800..=0xdfff) => (UNKNOWN, 6),
        Some(_) => (&text[..6], 6),
        None => {
            let taken = text.len().min(2);
            (&text[..taken], taken)
        }
    }
}

/// The number of a `\uXXXX`.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(br"\u")?.get(..4)?;
    u16::from_str_radix(std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?, 16).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_most_readers_take_is_read_and_nothing_else() {
        for (text, read) in [
            (r#"{"a":NaN,"b":[-Infinity,Infinity,1]}"#, json!({"a": null, "b": [null, null, 1]})),
            (r#"{"NaN":"NaN \"Infinity"}"#, json!({"NaN": "NaN \"Infinity"})),
            (r#"{"a":1,"a":2}"#, json!({"a": 2})),
            (
                r#"["\ud83d\ude00","\ud83d","x\ude00y","\ud83dA","\\ud83d"]"#,
                json!(["\u{1f600}", "\u{fffd}", "x\u{fffd}y", "\u{fffd}A", "\\ud83d"]),
            ),
            (r#""\ud83d\ud83d\ude00""#, json!("\u{fffd}\u{1f600}")),
        ] {
            assert_eq!(mended(text.as_bytes()), Some(read), "{text}");
        }
        for text in ["", "{", "nan", "NaNa", "{\"a\":}", "\"\\", "\"\\u12", "\"\\u+123\"", "\"\\x\"", "<html>", "Infinit"] {
            assert_eq!(mended(text.as_bytes()), None, "{text}");
        }
    }
}
