//! Chat templates: the tiny model's, and what Hugging Face's environment allows.

use super::*;
use crate::tiny::{self, TinySpec};

fn of(source: &str) -> Template {
    Template::compile(source, "<s>".into(), "</s>".into()).unwrap()
}

fn rendered(source: &str, turns: &[(&str, &str)]) -> String {
    of(source).render(turns).unwrap()
}

#[test]
fn the_tiny_models_template_is_chatml() {
    let t = Template::new(&Gguf::from_bytes(tiny::bytes(&TinySpec::default())).unwrap()).unwrap();
    assert_eq!(
        t.render(&[("user", "Hi {{ 1 }} <b>&")]).unwrap(),
        "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n<|im_start|>user\nHi {{ 1 }} <b>&<|im_end|>\n<|im_start|>assistant\n"
    );
    let own = t.render(&[("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho"), ("user", "He")]).unwrap();
    assert!(
        own.starts_with("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n")
    );
}

#[test]
fn blocks_are_trimmed_and_stripped() {
    let source = "{%- for m in messages %}\n    {% if m.role == 'user' %}\n{{ m.content }}|\n    {% endif %}\n{%- endfor %}\n";
    assert_eq!(rendered(source, &[("user", "a"), ("tool", "b"), ("user", "c")]), "a|\nc|\n");
}

#[test]
fn loop_controls_and_pythons_methods_work() {
    let source = "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}{{ m.content.strip().upper() }}{% if m['content'].startswith('q') %}{% break %}{% endif %}{% endfor %}";
    assert_eq!(rendered(source, &[("tool", "x"), ("user", " a "), ("user", "q"), ("user", "z")]), "AQ");
    assert_eq!(rendered("{{ bos_token }}{{ messages[-1]['content'].split('#')[1] }}{{ eos_token }}", &[("user", "a#b")]), "<s>b</s>");
    assert_eq!(
        rendered(
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            &[("u", ""), ("u", "")]
        ),
        "2"
    );
    assert_eq!(rendered("{% if tools is defined %}t{% endif %}{% if not tools %}n{% endif %}", &[]), "n");
}

#[test]
fn json_is_pythons() {
    assert_eq!(
        rendered("{{ {'a': [1, 2.5, none], 'b': messages[0].content} | tojson }}", &[("user", "<é'\">")]),
        r#"{"a": [1, 2.5, null], "b": "<é'\">"}"#
    );
    assert_eq!(rendered("{{ {'a': [1]} | tojson(indent=2) }}", &[]), "{\n  \"a\": [\n    1\n  ]\n}");
}

#[test]
fn a_template_can_refuse_and_has_no_clock() {
    assert_eq!(rendered("{% if strftime_now is defined %}today{% else %}whenever{% endif %}", &[]), "whenever");
    let error = of("{{ raise_exception('roles must alternate') }}").render(&[]).unwrap_err();
    assert!(matches!(&error, TextError::Encode(text) if text.ends_with("refuses the conversation: roles must alternate")), "{error}");
}

#[test]
fn a_template_that_is_none_is_refused_at_load() {
    for source in ["{% for %}", "{{ unclosed", &"x".repeat(TEMPLATE_MAX + 1)] {
        let error = Template::compile(source, String::new(), String::new()).err().expect("must be refused");
        assert!(error.to_string().contains("tokenizer.chat_template"), "{error}");
    }
}

#[test]
fn rendering_is_bounded() {
    let busy = of("{% for a in range(99999) %}{% for b in range(99999) %}{% set x = a * b %}{% endfor %}{% endfor %}").render(&[]);
    assert!(busy.unwrap_err().to_string().contains("steps"));
    let big = "x".repeat(RENDERED_MAX / 2);
    let long = of("{% for i in range(9) %}{{ messages[0].content }}{% endfor %}").render(&[("user", &big)]);
    assert!(long.unwrap_err().to_string().contains("longer than"));
    let deep = of("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}").render(&[]);
    assert!(deep.is_err());
}
