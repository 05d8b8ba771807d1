//! Tokenizer, detokeniser and stop strings on the tiny vocabulary, against Hugging Face's own pipeline and naive searches.

use std::cell::Cell;

use proptest::prelude::*;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;

use super::TextError;
use super::pretokenizer::{PreTokenizer, segments};
use super::stop::StopFinder;
use super::tokenizer::Tokenizer;
use crate::gguf::Gguf;
use crate::tiny::{self, TinySpec, Writer};

fn gguf() -> Gguf {
    Gguf::from_bytes(tiny::bytes(&TinySpec::default())).unwrap()
}

/// The tiny vocabulary in Hugging Face's own pipeline.
fn reference(gguf: &Gguf) -> tokenizers::Tokenizer {
    let vocab: Vocab = gguf.strings("tokenizer.ggml.tokens").unwrap().iter().zip(0..).map(|(t, i)| (t.to_string(), i)).collect();
    let merges = gguf.strings("tokenizer.ggml.merges").unwrap();
    let merges = merges.iter().map(|m| m.split_once(' ').unwrap()).map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    let mut out = tokenizers::Tokenizer::new(BPE::builder().vocab_and_merges(vocab, merges).build().unwrap());
    out.with_pre_tokenizer(Some(Sequence::new(vec![Digits::new(true).into(), ByteLevel::new(false, true, true).into()])));
    out
}

/// A GGUF with nothing but a tokenizer.
fn small(
    model: &str,
    pre: &str,
    tokens: &[&str],
    kinds: &[i32],
    merges: &[&str],
    more: impl FnOnce(&mut Writer),
) -> Result<Tokenizer, TextError> {
    let mut w = Writer::default();
    w.str("tokenizer.ggml.model", model);
    w.str("tokenizer.ggml.pre", pre);
    w.strings("tokenizer.ggml.tokens", tokens);
    w.ints("tokenizer.ggml.token_type", kinds);
    w.strings("tokenizer.ggml.merges", merges);
    more(&mut w);
    Tokenizer::new(&Gguf::from_bytes(w.finish()).unwrap())
}

fn pieces(rule: &str, text: &str) -> Vec<String> {
    pieces_of(&PreTokenizer::named(rule).unwrap(), text)
}

fn pieces_of(rule: &PreTokenizer, text: &str) -> Vec<String> {
    let mut out = Vec::new();
    let add = &mut |p: &str| {
        out.push(p.to_owned());
        Ok(())
    };
    rule.split(text, add).unwrap();
    out
}

#[test]
fn segments_are_as_short_as_they_may_be() {
    let cut = |text: &'static str, least: usize| segments(text, least).collect::<Vec<_>>();
    assert_eq!(cut("ab  cd\n\te fg", 1), ["ab", "  cd", "\n\te", " fg"]);
    assert_eq!(cut("ab cd ef", 4), ["ab cd", " ef"]);
    assert_eq!(cut("abcdef", 2), ["abcdef"]);
    assert!(cut("", 1).is_empty());
}

#[test]
fn words_are_cut_by_each_rule() {
    assert_eq!(pieces("gpt-2", "I'll  see 42 of\n\n them!\n"), ["I", "'ll", " ", " see", " 42", " of", "\n\n", " them", "!", "\n"]);
    assert_eq!(pieces("smollm", "a 42b"), ["a", " ", "4", "2", "b"]);
    assert_eq!(pieces("default", "x=12345 $a"), ["x", "=", "123", "45", " ", "$", "a"]);
    assert_eq!(pieces("gpt-2", "   "), ["   "]);
    assert_eq!(pieces("gpt-2", "\t\tx \u{a0}y"), ["\t", "\t", "x", " ", "\u{a0}", "y"]);
    assert!(pieces("smollm", "").is_empty());
}

#[test]
fn control_tokens_are_found_only_where_they_are_looked_for() {
    let t = Tokenizer::new(&gguf()).unwrap();
    let text = "<|im_start|>user\n<|im_end|>";
    let parsed = t.encode(text, true).unwrap();
    assert_eq!((parsed[0], *parsed.last().unwrap()), (1, 2));
    assert!(t.encode(text, false).unwrap().iter().all(|&id| id > 2));
    assert_eq!(t.encode_with(text, &|| false).unwrap(), parsed);
    assert_eq!(t.end_tokens(), [2]);
    assert_eq!(t.bytes(2), b"<|im_end|>");
    assert!(t.bytes(u32::MAX).is_empty());
    let mut d = t.detokenizer();
    let shown: String = parsed.iter().map(|&id| d.push(id)).collect();
    assert_eq!(shown + &d.finish(), "user\n");
}

#[test]
fn user_defined_tokens_are_found_in_any_text_and_shown() {
    let t = small("gpt2", "gpt-2", &["a", "b", "<u>", "<c>", "ab"], &[1, 1, 4, 3, 1], &["a b"], |_| {}).unwrap();
    assert_eq!(t.encode("ab<u>b<c>", false).unwrap(), [4, 2, 1]);
    assert_eq!(t.encode("ab<u>b<c>", true).unwrap(), [4, 2, 1, 3]);
    assert_eq!(t.detokenizer().push(2), "<u>");
}

#[test]
fn a_beginning_that_the_model_wants_is_there_once() {
    let with = |adds: bool| {
        small("gpt2", "gpt-2", &["a", "<s>"], &[1, 3], &[], |w| {
            w.uint("tokenizer.ggml.bos_token_id", 1);
            w.bool("tokenizer.ggml.add_bos_token", adds);
        })
        .unwrap()
    };
    assert_eq!(with(true).encode_with("a", &|| false).unwrap(), [1, 0]);
    assert_eq!(with(true).encode_with("<s>a", &|| false).unwrap(), [1, 0]);
    assert_eq!(with(false).encode_with("a", &|| false).unwrap(), [0]);
}

#[test]
fn a_tokenizer_that_cannot_be_used_says_what_is_wrong() {
    let refused = |r: Result<Tokenizer, TextError>| r.err().expect("must be refused").to_string();
    let none = |_: &mut Writer| {};
    let cases = [
        (refused(small("llama", "gpt-2", &["a"], &[1], &[], none)), "tokenizer.ggml.model is \"llama\""),
        (refused(small("gpt2", "qwen2", &["a"], &[1], &[], none)), "tokenizer.ggml.pre is \"qwen2\""),
        (refused(small("gpt2", "gpt-2", &["a"], &[1, 1], &[], none)), "token_type 2"),
        (refused(small("gpt2", "gpt-2", &[], &[], &[], none)), "has 0 entries"),
        (refused(small("gpt2", "gpt-2", &["a"], &[1], &["ab"], none)), "is no pair"),
        (refused(small("gpt2", "gpt-2", &["a", "b"], &[1, 1], &["a b"], none)), "do not fit"),
        (refused(small("gpt2", "gpt-2", &["a"], &[1], &[], |w| w.uint("tokenizer.ggml.eos_token_id", 9))), "eos_token_id is 9"),
        (refused(Tokenizer::new(&Gguf::from_bytes(Writer::default().finish()).unwrap())), "tokenizer.ggml.model"),
    ];
    for (text, wanted) in cases {
        assert!(text.contains(wanted), "{text}");
    }
}

#[test]
fn a_byte_without_a_token_is_left_out() {
    let t = small("gpt2", "gpt-2", &["a"], &[1], &[], |_| {}).unwrap();
    assert_eq!(t.encode("aéa", true).unwrap(), [0, 0]);
}

// contract: C-13 (being tokenised)
#[test]
fn a_caller_who_left_is_noticed_within_a_few_words() {
    let t = Tokenizer::new(&gguf()).unwrap();
    for text in ["of the ".repeat(100_000), "<|im_end|>".repeat(100_000), "7".repeat(700_000)] {
        let looks = Cell::new(0);
        let leave = || {
            looks.set(looks.get() + 1);
            looks.get() > 3
        };
        assert!(matches!(t.encode_with(&text, &leave), Err(TextError::Cancelled)));
        assert_eq!(looks.get(), 4);
    }
}

#[test]
fn long_texts_of_anything_take_no_quadratic_time() {
    let t = Tokenizer::new(&gguf()).unwrap();
    let n = 1 << 17;
    let hostile = [" ", "\n", "a", "th", "1", "!", "'", "é", "\u{a0}", "<|im_", "a ", " \n", "<|im_end|>", "\u{1f469}\u{200d}"];
    for unit in hostile {
        let text = unit.repeat(n / unit.len());
        let begin = std::time::Instant::now();
        let ids = t.encode(&text, true).unwrap();
        // Linear takes 0.1 s; quadratic would be 1e10 steps.
        assert!(begin.elapsed().as_secs() < 3, "{unit:?} took {:?}", begin.elapsed());
        assert!(!ids.is_empty());
    }
}

/// Text with all that makes cutting hard.
fn tricky() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => prop::sample::select(vec![" ", "  ", "\n", "\r\n", "\t", "\u{a0}", "\u{3000}", "'s", "'ll", "'", "the", "in", "12", "Ⅷ", "½", "é", "e\u{301}", "日本", "👩‍🚀", "!?", "_", "\0", "<|im_", "|>", "Ġ"])
            .prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(part, 0..30).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn tokens_are_those_of_the_reference_pipeline(texts in prop::collection::vec(tricky(), 8)) {
        thread_local!(static BOTH: (Tokenizer, tokenizers::Tokenizer) = (Tokenizer::new(&gguf()).unwrap(), reference(&gguf())));
        for text in texts {
            let (ours, theirs) = BOTH.with(|(a, b)| (a.encode(&text, false).unwrap(), b.encode_fast(text.as_str(), false).unwrap()));
            prop_assert_eq!(&ours, theirs.get_ids(), "{:?}", text);
        }
    }

    #[test]
    fn pieces_of_any_rule_are_the_text(text in tricky()) {
        thread_local!(static RULES: [PreTokenizer; 3] = ["smollm", "gpt-2", "default"].map(|r| PreTokenizer::named(r).unwrap()));
        for pieces in RULES.with(|rules| rules.each_ref().map(|rule| pieces_of(rule, &text))) {
            prop_assert!(pieces.iter().all(|p| !p.is_empty()));
            prop_assert_eq!(pieces.concat(), text.clone());
        }
    }

    #[test]
    fn segments_change_no_piece(text in tricky(), least in 0usize..20) {
        thread_local!(static RULES: [PreTokenizer; 3] = ["smollm", "gpt-2", "default"].map(|r| PreTokenizer::named(r).unwrap()));
        prop_assert_eq!(segments(&text, least).collect::<String>(), text.clone());
        for (whole, cut) in RULES.with(|rules| {
            rules.each_ref().map(|r| (pieces_of(r, &text), segments(&text, least).flat_map(|s| pieces_of(r, s)).collect::<Vec<_>>()))
        }) {
            prop_assert_eq!(whole, cut);
        }
    }

    #[test]
    fn text_comes_back_from_its_tokens(text in tricky()) {
        thread_local!(static T: Tokenizer = Tokenizer::new(&gguf()).unwrap());
        let (ids, mut d) = T.with(|t| (t.encode(&text, false).unwrap(), t.detokenizer()));
        let back: String = ids.iter().map(|&id| d.push(id)).collect();
        prop_assert_eq!(back + &d.finish(), text);
    }

    #[test]
    fn pushes_are_the_lossy_decoding_of_all_bytes(ids in prop::collection::vec(0u32..300, 0..60)) {
        thread_local!(static T: Tokenizer = Tokenizer::new(&gguf()).unwrap());
        let (bytes, mut d) = T.with(|t| {
            let shown = ids.iter().filter(|&&id| id > 2).flat_map(|&id| t.bytes(id)).collect::<Vec<u8>>();
            (shown, t.detokenizer())
        });
        let text: String = ids.iter().map(|&id| d.push(id)).collect();
        prop_assert_eq!(text + &d.finish(), String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn stops_are_found_however_the_text_is_cut(
        text in "[abé]{0,24}",
        stops in prop::collection::vec("[abé]{1,5}", 0..4),
        cuts in prop::collection::vec(any::<bool>(), 24),
    ) {
        // Naive: the first end of any stop, and of those that end there the longest.
        let ends = text.char_indices().map(|(i, c)| i + c.len_utf8());
        let found = ends.filter_map(|e| stops.iter().filter(|s| text[..e].ends_with(s.as_str())).map(|s| e - s.len()).min()).next();
        let mut finder = StopFinder::new(&stops);
        let (mut shown, mut hit, mut piece) = (String::new(), false, String::new());
        for (i, c) in text.chars().enumerate() {
            piece.push(c);
            if cuts[i] {
                let step = finder.push(&std::mem::take(&mut piece));
                shown += &step.text;
                hit = step.hit;
            }
            // What was shown is never taken back.
            prop_assert!(text[..found.unwrap_or(text.len())].starts_with(&shown));
        }
        let step = finder.push(&piece);
        shown += &step.text;
        hit |= step.hit;
        shown += &finder.finish();
        prop_assert_eq!(hit, found.is_some());
        prop_assert_eq!(shown, &text[..found.unwrap_or(text.len())]);
    }
}

#[test]
fn only_what_could_begin_a_stop_is_held_back() {
    let mut f = StopFinder::new(&["\n\nUser:".into(), "END".into()]);
    assert_eq!(f.push("one EN").text, "one ");
    assert_eq!(f.push("ough\n").text, "ENough");
    assert_eq!(f.push("\nUse").text, "");
    assert_eq!(f.push("ful").text, "\n\nUseful");
    let step = f.push("!END and more");
    assert_eq!((step.text.as_str(), step.hit), ("!", true));
    assert_eq!(f.push("x").text, "");
    let mut g = StopFinder::new(&["END".into(), String::new()]);
    assert_eq!((g.push("EN").text, g.finish()), (String::new(), "EN".to_owned()));
}
