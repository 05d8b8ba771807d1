//! The reader against good, damaged and hostile files.

use proptest::prelude::*;

use super::*;

/// Puts a file together field by field, so that any field can be wrong.
#[derive(Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn new(version: u32, tensors: u64, keys: u64) -> Raw {
        Raw::default().bytes(b"GGUF").u32(version).u64(tensors).u64(keys)
    }
    fn bytes(mut self, b: &[u8]) -> Raw {
        self.0.extend_from_slice(b);
        self
    }
    fn u32(self, n: u32) -> Raw {
        self.bytes(&n.to_le_bytes())
    }
    fn u64(self, n: u64) -> Raw {
        self.bytes(&n.to_le_bytes())
    }
    fn str(self, s: &[u8]) -> Raw {
        self.u64(s.len() as u64).bytes(s)
    }
    fn key(self, name: &str, kind: u32) -> Raw {
        self.str(name.as_bytes()).u32(kind)
    }
    fn tensor(self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Raw {
        let raw = self.str(name.as_bytes()).u32(dims.len() as u32);
        dims.iter().fold(raw, |r, &d| r.u64(d)).u32(kind).u64(offset)
    }
    fn padded(mut self, data: usize) -> Raw {
        let begin = self.0.len().next_multiple_of(32);
        self.0.resize(begin + data, 7);
        self
    }
    fn fails(self) -> String {
        Gguf::from_bytes(self.0).expect_err("must be refused").to_string()
    }
}

fn small() -> Vec<u8> {
    Raw::new(3, 2, 6)
        .key("general.architecture", 8)
        .str(b"llama")
        .key("a.u32", 4)
        .u32(7)
        .key("a.f32", 6)
        .bytes(&1.5f32.to_le_bytes())
        .key("a.names", 9)
        .u32(8)
        .u64(2)
        .str(b"x")
        .str("é".as_bytes())
        .key("a.ints", 9)
        .u32(5)
        .u64(3)
        .u32(1)
        .u32(u32::MAX)
        .u32(3)
        .key("a.bool", 7)
        .bytes(&[1])
        .tensor("one", &[32, 2], 3, 0)
        .tensor("two", &[3], 0, 64)
        .padded(64 + 12)
        .0
}

#[test]
fn a_good_file_is_read() {
    let g = Gguf::from_bytes(small()).unwrap();
    assert_eq!(g.version(), 3);
    assert_eq!(g.str("general.architecture").unwrap(), "llama");
    assert_eq!(g.u32("a.u32").unwrap(), 7);
    assert_eq!(g.f32("a.f32").unwrap(), 1.5);
    assert_eq!(g.strings("a.names").unwrap(), ["x", "é"]);
    assert_eq!(g.ints("a.ints").unwrap(), [1, -1, 3]);
    assert!(g.bool("a.bool").unwrap());
    let t = g.tensor("one").unwrap();
    assert_eq!((t.dims, t.kind, t.data.len()), (&[32, 2][..], TensorKind::Q4_1, 40));
    assert_eq!(g.tensors().map(|t| t.name).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(g.metadata().count(), 6);
}

#[test]
fn a_look_up_that_fails_says_where_and_what() {
    let g = Gguf::from_bytes(small()).unwrap();
    let missing = g.u32("a.none").unwrap_err().to_string();
    assert!(missing.contains("a.none") && missing.contains("bytes 24 to"), "{missing}");
    let wrong = g.str("a.u32").unwrap_err().to_string();
    assert!(wrong.contains("unsigned integer 7") && wrong.contains("a text") && wrong.contains("byte 86"), "{wrong}");
    assert!(g.tensor("three").unwrap_err().to_string().contains("three"));
    assert!(g.u32("a.ints").is_err() && g.strings("a.ints").is_err() && g.ints("a.names").is_err() && g.bool("a.u32").is_err());
}

#[test]
fn a_file_is_mapped() {
    let path = std::env::temp_dir().join(format!("kvit-gguf-{}", std::process::id()));
    std::fs::write(&path, small()).unwrap();
    let g = Gguf::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(g.tensor("two").unwrap().data.len(), 12);
    assert!(matches!(Gguf::open(&path), Err(GgufError::Open { .. })));
}

#[test]
fn hostile_fields_are_refused_by_name() {
    let cases: Vec<(&str, Raw, &str)> = vec![
        ("empty", Raw::default(), "byte 0, magic"),
        ("magic", Raw::default().bytes(b"GGML0000"), "give a GGUF file"),
        ("old", Raw::new(1, 0, 0), "byte 4, version: 1"),
        ("big-endian", Raw::new(3u32.swap_bytes(), 0, 0), "big-endian"),
        ("new", Raw::new(4, 0, 0), "newer kvit"),
        ("tensor count", Raw::new(3, u64::MAX, 0), "byte 8, tensor count"),
        ("tensors absent", Raw::new(3, 60_000, 0), "tensor count: needs"),
        ("key count", Raw::new(3, 0, u64::MAX), "byte 16, metadata count"),
        ("long key", Raw::new(3, 0, 1).u64(u64::MAX).u32(0).bytes(&[0; 9]), "metadata key 0: a string of"),
        ("long text", Raw::new(3, 0, 1).key("k", 8).u64(u64::MAX), "metadata \"k\": needs"),
        ("not UTF-8", Raw::new(3, 0, 1).key("k", 8).str(b"ab\xff"), "byte 47, metadata \"k\": not UTF-8"),
        ("value type", Raw::new(3, 0, 1).key("k", 13).u64(0), "unknown value type 13"),
        ("truth value", Raw::new(3, 0, 1).key("k", 7).bytes(&[2]), "truth value of 2"),
        ("element type", Raw::new(3, 0, 1).key("k", 9).u32(77).u64(1), "unknown element type 77"),
        ("many items", Raw::new(3, 0, 1).key("k", 9).u32(0).u64(u64::MAX), "allowed are"),
        ("items absent", Raw::new(3, 0, 1).key("k", 9).u32(10).u64(1 << 22), "metadata \"k\": needs"),
        ("key twice", Raw::new(3, 0, 2).key("k", 0).bytes(&[1]).key("k", 0).bytes(&[1]), "occurs twice"),
        ("alignment 0", Raw::new(3, 0, 1).key("general.alignment", 4).u32(0), "power of two"),
        ("alignment 48", Raw::new(3, 0, 1).key("general.alignment", 4).u32(48), "power of two"),
        ("alignment text", Raw::new(3, 0, 1).key("general.alignment", 8).str(b"32"), "power of two"),
        ("rank 0", Raw::new(3, 1, 0).tensor("t", &[], 0, 0).padded(8), "0 dimensions"),
        ("rank 5", Raw::new(3, 1, 0).tensor("t", &[1; 5], 0, 0).padded(8), "5 dimensions"),
        ("dimension 0", Raw::new(3, 1, 0).tensor("t", &[0], 0, 0).padded(8), "dimensions [0]"),
        ("dims overflow", Raw::new(3, 1, 0).tensor("t", &[1 << 32, 1 << 32], 0, 0).padded(8), "too large"),
        ("bytes overflow", Raw::new(3, 1, 0).tensor("t", &[1 << 62], 0, 0).padded(8), "too large"),
        ("half a block", Raw::new(3, 1, 0).tensor("t", &[16, 2], 3, 0).padded(80), "no whole blocks of Q4_1"),
        ("tensor type", Raw::new(3, 1, 0).tensor("t", &[1], 5, 0).padded(8), "unknown element type 5"),
        ("misaligned", Raw::new(3, 1, 0).tensor("t", &[1], 0, 4).padded(64), "no multiple of 32"),
        ("past the end", Raw::new(3, 1, 0).tensor("t", &[1], 0, 64).padded(64), "data of tensor \"t\": needs 4"),
        ("offset overflow", Raw::new(3, 1, 0).tensor("t", &[1], 0, u64::MAX - 31).padded(64), "data of tensor"),
        ("name twice", Raw::new(3, 2, 0).tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).padded(64), "occurs twice"),
        ("overlap", Raw::new(3, 2, 0).tensor("t", &[16], 0, 0).tensor("u", &[1], 0, 32).padded(64), "lies over"),
        ("long name", Raw::new(3, 1, 0).tensor(&"t".repeat(65), &[1], 0, 0).padded(64), "allowed are 64"),
    ];
    for (name, raw, wanted) in cases {
        let text = raw.fails();
        assert!(text.contains(wanted), "{name}: {text}");
        assert!(text.contains("byte"), "{name} names no offset: {text}");
    }
}

#[test]
fn arrays_nest_only_so_deep() {
    let nested = |depth: usize| (0..depth).fold(Raw::new(3, 0, 1).key("k", 9), |r, _| r.u32(9).u64(1)).u32(0).u64(0);
    assert!(Gguf::from_bytes(nested(3).0).is_ok());
    assert!(nested(4).fails().contains("nested deeper"));
    assert!(nested(100_000).fails().contains("nested deeper"));
}

/// Touches everything a file offers; the file is consistent if this does not panic.
fn walk(g: &Gguf) {
    for t in g.tensors() {
        assert_eq!(Some(t.data.len() as u64), t.kind.bytes(t.dims.iter().product()));
        assert!(g.tensor(t.name).is_ok());
    }
    for (key, value) in g.metadata() {
        assert_eq!(g.get(key).map(Value::describe), Some(value.describe()));
    }
}

#[test]
fn every_truncation_is_an_error() {
    let whole = small();
    for len in 0..whole.len() {
        let error = Gguf::from_bytes(whole[..len].to_vec()).expect_err("a truncated file must be refused");
        assert!(error.to_string().contains("byte"), "{error}");
    }
}

#[test]
fn every_byte_set_to_an_extreme_is_survived() {
    let whole = small();
    for at in 0..whole.len() {
        for value in [0x00, 0x01, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            if let Ok(g) = Gguf::from_bytes(bytes) {
                walk(&g);
            }
        }
    }
}

proptest! {
    #[test]
    fn random_damage_is_survived(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        let mut bytes = small();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= value;
        }
        if let Ok(g) = Gguf::from_bytes(bytes) {
            walk(&g);
        }
    }

    #[test]
    fn random_bytes_behind_a_good_preamble_are_survived(tail in prop::collection::vec(any::<u8>(), 0..300), n in 0u64..4, k in 0u64..4) {
        if let Ok(g) = Gguf::from_bytes(Raw::new(3, n, k).bytes(&tail).0) {
            walk(&g);
        }
    }
}
