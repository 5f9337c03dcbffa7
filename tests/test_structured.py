"""Structured outputs: each form holds in every stage, alone and in any batch; what is impossible is refused in time."""

import json
import os
import re
import shutil
import sys
import time
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagewise import form_compiler, sampling_params, structured
from stagewise import structured_outputs as forms
from stagewise.structured_outputs import Form
from tests.adapter import EOS, STAGES

pytestmark = pytest.mark.covers("support/logits_processors.py", "sampler.py")
PROMPT = "Once upon a time"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "friends": {"type": "array", "items": {"enum": ["fox", "bear", 'a "shy" mouse']}, "maxItems": 3},
        "mood": {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"const": "wild"}]},
    },
    "required": ["name", "age", "friends"],
    "additionalProperties": False,
}
SUMS = 'root ::= number ("+" number){1,3}\nnumber ::= [1-9] [0-9]{0,2}'
LARK = 'start: "the " ANIMAL (" and the " ANIMAL)?\nANIMAL: "fox" | "bear" | /[mh]ouse/'
FORMS = {
    "choice": (dict(choice=["yes", "no", "maybe so"]), r"yes|no|maybe so"),
    "one choice": (dict(choice=['🙂 "\\\n']), '🙂 "\\\\\n'),
    "regex": (dict(regex=r"(19|20)\d{2}-[01]\d, [a-zé]{3,9}"), r"(19|20)\d{2}-[01]\d, [a-zé]{3,9}"),
    "gbnf": (dict(grammar=SUMS), r"[1-9]\d{0,2}(\+[1-9]\d{0,2}){1,3}"),
    "lark": (dict(grammar=LARK), r"the (fox|bear|[mh]ouse)( and the (fox|bear|[mh]ouse))?"),
    "json": (dict(json=PERSON), PERSON),
    "json as text, no spaces": (dict(json=json.dumps(PERSON), disable_any_whitespace=True), PERSON),
}


def has_form(text, form):
    if isinstance(form, dict):
        jsonschema.validate(json.loads(text), form)
        return True
    return re.fullmatch(form, text) is not None


DIGITS = {
    r"\d{6}": r"[0-9]{6}",
    r"[\d-]{6}": r"[0-9-]{6}",
    r"[^\d]{6}": r"[^0-9]{6}",
    r"\D{6}": r"[^0-9]{6}",
    r"[a-f\D]{6}": r"[^0-9]{6}",
    r"(\\d|\\\d){3}": r"(\\d|\\[0-9]){3}",
}


@pytest.mark.parametrize("regex", DIGITS)
def test_a_digit_of_a_regex_is_from_0_to_9(babble, regex):
    """As in JSON Schema and in other engines; in Rust it is any script's."""
    llm = STAGES[3].engine(babble)
    outputs = llm.generate([PROMPT] * 30, [params_of(llm, dict(regex=regex), seed=seed) for seed in range(30)])
    assert [o.outputs[0].text for o in outputs if not re.fullmatch(DIGITS[regex], o.outputs[0].text, re.DOTALL)] == []


def params_of(llm, form, **more):
    return sampling_params(llm, structured_outputs=form, **{"max_tokens": 200, "seed": 1, **more})


def tokens(outputs):
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def engines(babble):
    """An engine of each stage, with a small model that babbles: a form holds whatever the model is."""
    return lambda stage: stage.engine(babble, max_num_seqs=5)


@pytest.fixture
def run(stage, engines):
    """The completions of this stage's engine, with these forms and fields."""

    def complete(*asked):
        params = [params_of(engines(stage), form, **more) for form, more in asked]
        return [output.outputs[0] for output in engines(stage).generate([PROMPT] * len(params), params)]

    return complete


@pytest.mark.parametrize("name", FORMS)
def test_every_form_holds(run, name):
    form, expected = FORMS[name]
    hot, repetitive = dict(seed=3, temperature=2.5), dict(seed=5, repetition_penalty=3, frequency_penalty=9)
    for completion in run((form, dict(temperature=0)), (form, hot), (form, repetitive)):
        assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
        assert completion.token_ids[-1] == EOS
        assert has_form(completion.text, expected), completion.text


def test_any_object(run):
    """A model of tales may never close its brackets. What has ended is an object, all others begin one."""
    for completion in run(*((dict(json_object=True), dict(seed=seed, max_tokens=24)) for seed in range(3))):
        assert completion.text.startswith("{")
        if completion.finish_reason == "stop":
            assert isinstance(json.loads(completion.text), dict)
        else:
            assert (completion.finish_reason, len(completion.token_ids)) == ("length", 24)


def test_max_tokens_ends_it_as_length(run):
    (completion,) = run((dict(regex="[a-z]{50,}"), dict(max_tokens=3)))
    assert completion.finish_reason == "length"
    assert re.fullmatch("[a-z]+", completion.text)


def test_min_tokens_lengthens_what_can_be_longer(run):
    wide = dict(regex="[a-z ]*"), dict(min_tokens=8, temperature=0, logit_bias={EOS: 100})
    first, second = run(wide, (dict(choice=["yes", "no"]), dict(min_tokens=8)))
    assert (len(first.token_ids), first.finish_reason) == (9, "stop")
    assert second.text in ("yes", "no")


def test_stop_texts_and_other_controls(run):
    """A form ends only when it is complete: neither a stop string nor a stop token cuts it off."""
    cuts = dict(stop=[" ", "e"], stop_token_ids=list(range(256)), temperature=0)
    words = dict(bad_words=["fox", "fo", "f"], temperature=0)
    first, second = run((dict(regex="[a-z]{3} [a-z ]{30,60}"), cuts), (dict(choice=["fox", "bear"]), words))
    assert re.fullmatch("[a-z]{3} [a-z ]{30,60}", first.text)
    assert (first.finish_reason, first.stop_reason) == ("stop", None)
    assert second.text == "bear"


def test_logprobs_are_the_models_own(stage, engines, run):
    """As without a form: of the raw logits, in which another token may be likelier than the one that was allowed."""
    free = stage.SamplingParams(temperature=0, max_tokens=1)
    (best,) = engines(stage).generate([PROMPT], free)[0].outputs[0].token_ids
    (held,) = run((dict(regex="[0-9]{2}"), dict(temperature=0, logprobs=1)))
    assert held.logprobs[0][best].rank == 1
    assert held.logprobs[0][held.token_ids[0]].rank > 1


# --- In any company -------------------------------------------------------------------------------------------------


def mixed(llm, count, **more):
    """Requests with all kinds of forms, and some with none."""
    forms = [form for form, _ in FORMS.values()] + [None, dict(json_object=True)]
    made = []
    for i in range(count):
        how = dict(seed=i, temperature=[0, 1, 1.5][i % 3], max_tokens=14, **more)
        form = forms[i % len(forms)]
        made.append(sampling_params(llm, **how) if form is None else params_of(llm, form, **how))
    return made


def test_alone_and_beside_others(stage, engines):
    llm = engines(stage)
    prompts, params = [[7454, 2402, 257, 640][: 1 + i % 4] for i in range(9)], mixed(llm, 9)
    alone = [tokens(llm.generate([prompt], one))[0] for prompt, one in zip(prompts, params, strict=True)]
    assert tokens(llm.generate(prompts, params)) == alone
    assert tokens(llm.generate(prompts[::-1], params[::-1])) == alone[::-1]


@pytest.mark.parametrize(
    "options",
    [
        dict(num_blocks=9, watermark=0.0),  # preempts
        dict(max_num_batched_tokens=16),
        dict(enable_prefix_caching=True),
        dict(enable_prefix_caching=False, max_num_seqs=1),
    ],
    ids=str,
)
def test_preempted_chunked_and_cached(options, engines, babble):
    """Nothing is lost if a request has to wait again, and tokens from the prefix cache are not part of a form."""
    stage = STAGES[4]
    prompts = [[7454, 2402, 257, 640] * 10 + [i % 3 + 11] * (i % 5 + 1) for i in range(12)]
    expected = tokens(engines(stage).generate(prompts, mixed(engines(stage), 12)))
    llm = stage.engine(babble, **{"max_num_seqs": 6, **options})
    for _ in range(2):
        assert tokens(llm.generate(prompts, mixed(llm, 12))) == expected
    if "num_blocks" in options:
        assert llm.stats.num_preemptions > 0


def test_each_completion_has_its_own(engines):
    llm, form = engines(STAGES[4]), dict(json=PERSON)
    (output,) = llm.generate([PROMPT], params_of(llm, form, n=6, temperature=1.5))
    assert all(has_form(completion.text, PERSON) for completion in output.outputs)
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 6
    (alone,) = llm.generate([PROMPT], params_of(llm, form, temperature=1.5))
    assert alone.outputs[0].token_ids == output.outputs[0].token_ids


# --- The guide ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return STAGES[0].tokenizer()


@pytest.fixture(scope="module")
def llm(tokenizer):
    """The parts of an LLM that a processor needs."""
    engine = SimpleNamespace(model_config=SimpleNamespace(eos_token_ids=(EOS,)))
    return SimpleNamespace(engine=engine, get_tokenizer=lambda: tokenizer, vocab_size=EOS + 1)


def obvious(tokenizer, texts, output):
    """The tokens that begin what is left of one of these texts; the end token behind a whole one."""
    said = b"".join(map(tokenizer.token_bytes, output))
    rests = [text.encode()[len(said) :] for text in texts if text.encode().startswith(said)]
    found = {i for i in range(EOS) for rest in rests if rest and rest.startswith(tokenizer.token_bytes(i))}
    return found | ({EOS} if b"" in rests else set())


def test_against_the_obvious_way(llm, tokenizer):
    """Token by token, over the whole vocabulary."""
    texts = ["a fox", "a fox and a bear", "another one", "42", "4 é🙂"]
    for text in texts:
        guide, output = structured(llm, choice=texts), []
        for token in [*tokenizer.encode(text), EOS]:
            allowed, expected = set(np.flatnonzero(guide.allowed(output)).tolist()), obvious(tokenizer, texts, output)
            left = [one for one in texts if one.startswith(tokenizer.decode(output))]
            # Where there is one text left, it may be cut in one way only.
            assert allowed == expected if len(left) > 1 else token in allowed <= expected
            output.append(token)


def test_it_follows_whatever_output_it_is_shown(llm, tokenizer):
    """For earlier, different and shortened outputs, it always says the same as a new one."""
    text = '{"name": "Otto", "age": 7, "friends": ["fox", "bear"]}'
    ids = tokenizer.encode(text)
    guide = structured(llm, json=PERSON)
    for length in (0, 1, 2, 5, 3, 4, 9, 9, 0, len(ids), 7):
        new = structured(llm, json=PERSON)
        assert np.array_equal(guide.allowed(ids[:length]), new.allowed(ids[:length])), length
    with pytest.raises(ValueError, match="after 4 tokens"):
        guide.allowed([*ids[:3], tokenizer.encode("!")[0]])
    assert np.array_equal(guide.allowed(ids[:3]), structured(llm, json=PERSON).allowed(ids[:3]))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_what_it_lets_through_is_valid(llm, tokenizer, data):
    """Texts drawn at random from what is allowed, for schemas that are also drawn at random."""
    leaf = st.sampled_from(
        [
            {"type": "integer", "minimum": -20, "maximum": 300},
            {"type": "string", "maxLength": 8},
            {"type": "string", "pattern": "^[a-f]{2,4}$"},
            {"type": "boolean"},
            {"enum": ["é", 'a"b', 3, None]},
            {"type": "string", "format": "date"},
        ]
    )
    inner = st.recursive(
        leaf,
        lambda one: st.one_of(
            st.builds(lambda x: {"type": "array", "items": x, "minItems": 1, "maxItems": 2}, one),
            st.builds(lambda x, y: {"anyOf": [x, y]}, one, one),
            st.dictionaries(st.sampled_from(["a", "b", "ü"]), one, min_size=1).map(
                lambda x: {"type": "object", "properties": x, "required": sorted(x), "additionalProperties": False}
            ),
        ),
        max_leaves=5,
    )
    schema, seed = data.draw(inner), data.draw(st.integers(0, 2**32 - 1))
    guide = structured(llm, json=schema)
    random, output = np.random.default_rng(seed), []
    while len(output) < 300:
        token = int(random.choice(np.flatnonzero(guide.allowed(output))))
        if token == EOS:
            break
        output.append(token)
    assert token == EOS  # all of these are finite
    jsonschema.validate(json.loads(b"".join(map(tokenizer.token_bytes, output)).decode()), schema)


@pytest.mark.parametrize("none", [False, True])
def test_one_space_between_the_parts_of_json_or_none(llm, tokenizer, none):
    guide = structured(llm, json=PERSON, disable_any_whitespace=none)
    (space,) = tokenizer.encode(" ")
    assert guide.allowed(tokenizer.encode('{"name":'))[space] != none


A, B = {"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 2}}, "required": ["b"]}
OBJECTS = {  # a schema, a text that has its form, and one that has not
    "only those": ({"type": "object", **A}, '{"a": 1}', '{"c": 1}'),
    "also within": ({"type": "array", "items": {"type": "object", **A}}, '[{"a": 1}]', '[{"c": 1}]'),
    "others if it says so": ({"type": "object", **A, "additionalProperties": True}, '{"c": 1}', '{"a": 2}'),
    "of its parts": ({"type": "object", "allOf": [A, B]}, '{"a": 1, "b": 2}', '{"a": 1}'),
    "in a value": ({"const": {"properties": {"c": 1}}}, '{"properties": {"c": 1}}', "{}"),
    "a field of this name": (
        {"type": "object", "properties": {"properties": {"const": 1}}},
        '{"properties": 1}',
        '{"c": 1}',
    ),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_have_the_fields_that_are_listed(llm, tokenizer, name):
    schema, right, wrong = OBJECTS[name]

    def fits(text):
        guide, ids = structured(llm, json=schema), [*tokenizer.encode(text), EOS]
        return all(guide.allowed(ids[:i])[token] for i, token in enumerate(ids))

    jsonschema.validate(json.loads(right), schema)
    assert fits(right)
    assert not fits(wrong)


ORDINARY = [  # and a text that matches
    (r"<\w+>[^<]*</\w+>", "<été>the text é</b>"),
    (r"[\w.+-]+@[\w-]+\.[\w.]+", "a.b+c@x-y.co.uk"),
    (r"\d{1,3}(,\d{3})*(\.\d+)?", "1,234,567.89"),
    ("(?s).*", "a\nb"),
    ("^[a-z]+$", "word"),
    (r"(?i)[a-z]+ \w+", "The wörd"),
    (r"[^\W\d_]+", "Wörter"),
    (r'"([^"\\]|\\.)*"', r'"a \" b"'),
    (r"\w{1,30}: .{1,80}", "name: some text"),
    (r"(\W\w){3}\W", " a b-c!"),
]


@pytest.mark.parametrize(("regex", "text"), ORDINARY, ids=lambda x: x[:40])
def test_ordinary_regexes_are_followed_to_their_end(llm, tokenizer, regex, text):
    """However the text is cut into tokens. Where the form leaves one text, it allows one way to cut it."""
    random = np.random.default_rng(0)
    starts = [i for i in range(EOS) if tokenizer.token_bytes(i) in text.encode()]
    for pick in (lambda fits: fits[0], lambda fits: fits[-1], random.choice):
        guide, output, rest = structured(llm, regex=regex), [], text.encode()
        while rest:
            allowed = guide.allowed(output)
            fits = [i for i in starts if allowed[i] and rest.startswith(tokenizer.token_bytes(i))]
            assert fits, rest
            output.append(int(pick(sorted(fits, key=lambda i: len(tokenizer.token_bytes(i))))))
            rest = rest[len(tokenizer.token_bytes(output[-1])) :]
        assert guide.allowed(output)[EOS]


COSTLY = {
    "a large divisor": dict(json={"type": "integer", "multipleOf": 16777213}),
    "late": dict(json={"prefixItems": [{"const": "x" * 99}, {"type": "integer", "multipleOf": 2000003}]}),
    "many divisors": dict(json={"allOf": [{"type": "integer", "multipleOf": i} for i in range(1, 51)]}),
    "many patterns": dict(json={"patternProperties": {f"^{i}_.*[a-z]+{i}$": {"type": "integer"} for i in range(400)}}),
    "in a grammar": dict(grammar='start: %json {"type": "integer", "multipleOf": 16777213}'),
}


@pytest.mark.parametrize("name", COSTLY)
def test_what_takes_too_long_to_compile_is_refused(llm, name):
    """One of them by the real limit; the others by one that is reached sooner."""
    limit = {} if name == "in a grammar" else {"seconds": 0.25}
    says = rf"it is too large or too complex: compiling it takes over {limit.get('seconds', 1)} s or 512 MB"
    start = time.monotonic()
    with pytest.raises(ValueError, match=says):
        structured(llm, **COSTLY[name], **limit)
    assert time.monotonic() - start < 60  # a second or two, and a lot for a busy machine
    structured(llm, choice=[name])  # others go on


@pytest.mark.skipif(os.name != "posix", reason="it needs a program that ends at once")
def test_a_process_that_can_not_compile_is_not_the_forms_fault(monkeypatch):
    monkeypatch.setattr(form_compiler.sys, "executable", shutil.which("false"))
    with pytest.raises(OSError, match="the process that compiles structured outputs ended before"):
        form_compiler.FormCheck(b"{}")


def test_a_form_is_compiled_once(llm, tokenizer, monkeypatch):
    """However many outputs have it, even when they diverge."""
    made, make = [], forms.make_matcher
    monkeypatch.setattr(forms, "make_matcher", lambda *form: made.append(form) or make(*form))
    processor, texts = structured(llm, choice=["a fox", "a bear", "another fox"]), ["a fox", "a bear", "another fox"]
    outputs = {text: [*tokenizer.encode(text), EOS] for text in texts}
    for length in range(4):
        for _ in range(3):
            for text, ids in outputs.items():
                if length < len(ids):
                    assert processor.allowed(ids[:length])[ids[length]], text
    assert len(made) == 1


def test_matchers_that_were_dropped_are_made_again(llm, tokenizer, monkeypatch):
    """Only some are kept, however many outputs have the form."""
    monkeypatch.setattr(forms, "MAX_MATCHERS", 1)
    processor = structured(llm, json=PERSON)
    texts = ['{"name": "Otto", "age": 7, "friends": ["fox"]}', '{"name": "Anna", "age": 70, "friends": []}']
    for ids in [tokenizer.encode(text) for text in texts] * 3:
        assert np.array_equal(processor.allowed(ids), structured(llm, json=PERSON).allowed(ids))
    assert len(processor._matchers) == 1


def follow(processor, token_ids):
    for length in range(len(token_ids)):
        processor.allowed(token_ids[:length])


def test_it_is_a_function_also_after_it_failed(llm, tokenizer):
    """An output that exceeds the limits takes nothing from those that come later."""
    processor = structured(llm, regex="(.{0,300}a){0,300}")
    first = processor.allowed([])
    letters = [tokenizer.encode(letter)[0] for letter in "ab"]
    with pytest.raises(ValueError, match=r"structured_outputs fails after \d+ tokens: .*too large or too complex"):
        follow(processor, letters * 150)
    assert np.array_equal(processor.allowed([]), first)


def test_a_full_lexer_is_no_limit_of_an_output(llm, tokenizer, monkeypatch):
    """Outputs that together reach more states than may be kept. What may follow is the same as if each was alone."""
    monkeypatch.setitem(forms.LIMITS, "max_lexer_states", 1000)
    monkeypatch.setattr(forms, "STEP_SECONDS", 60)
    made, make = [], forms.make_matcher
    monkeypatch.setattr(forms, "make_matcher", lambda *form: made.append(form) or make(*form))
    processor, random = structured(llm, regex=r"(\w{1,30} ){1,300}"), np.random.default_rng(0)
    monkeypatch.setattr(forms, "check", None)  # which would wait for other forms, and all requests of the step with it
    outputs = [[] for _ in range(4)]
    for _ in range(40):
        for output in outputs:
            allowed = processor.allowed(output)
            output.append(int(random.choice(np.flatnonzero(allowed[:EOS]))))
    assert len(made) > 1
    monkeypatch.undo()
    monkeypatch.setitem(forms.LIMITS, "max_lexer_states", 1000)
    for output in outputs:
        alone = structured(llm, regex=r"(\w{1,30} ){1,300}")
        assert np.array_equal(processor.allowed(output), alone.allowed(output))


def test_a_form_that_takes_long_is_not_compiled_again_in_a_step(llm, tokenizer, monkeypatch):
    monkeypatch.setattr(forms, "STEP_SECONDS", 0)
    processor = structured(llm, regex="(.{0,300}a){0,300}")
    with pytest.raises(ValueError, match=r"structured_outputs fails after \d+ tokens"):
        follow(processor, [tokenizer.encode(letter)[0] for letter in "ab"] * 150)
    monkeypatch.setattr(forms, "make_matcher", None)
    with pytest.raises(ValueError, match="structured_outputs fails after 0 tokens"):
        processor.allowed([])


# --- What is refused ------------------------------------------------------------------------------------------------

DEEP = {"$ref": "#/$defs/0", "$defs": {**{str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(900)}, "900": {}}}
WRONG = [
    (dict(), "exactly one of"),
    (dict(regex="a", choice=["b"]), "regex, choice"),
    (dict(json_object=False), "exactly one of"),
    (dict(choice=[]), "at least one string"),
    (dict(choice="yes"), "at least one string"),
    (dict(choice=["yes", ""]), "non-empty"),
    (dict(choice=["yes", 3]), "3"),
    (dict(regex=""), "non-empty"),
    (dict(regex=3), "got 3"),
    (dict(regex="\ud800"), "Unicode"),
    (dict(json="{"), "JSON schema"),
    (dict(json=[1]), "object"),
    (dict(json={"minimum": float("nan")}), "JSON"),
    (dict(json={"type": object()}), "JSON schema"),
    (dict(json=PERSON, disable_any_whitespace="yes"), "disable_any_whitespace"),
    (dict(regex="a" * 70_000), "70,000 characters; the limit is 65,536"),
    (dict(json={"enum": ["x" * 40_000, "y" * 40_000]}), "the limit is 65,536"),
    (dict(json=DEEP), "901 rules or references; the limit is 250"),
    (dict(grammar="\n".join(f"r{i}: r{i + 1}" for i in range(3000)) + '\nstart: r0\nr3000: "a"'), "the limit is 250"),
]
# Found out by llguidance, from the first to the last step of making a matcher.
IMPOSSIBLE = [
    (dict(regex="(a"), "unclosed group"),
    (dict(regex=r"[^\s\S]"), "no text has this form"),
    (dict(regex=r"(.{1,1000}){1,1000}"), "too large"),
    (dict(json={"type": "array", "uniqueItems": True}), "uniqueItems"),
    (dict(json={"$ref": "https://example.org/schema"}), "example.org"),
    (dict(json={"allOf": [{"type": "string"}, {"type": "null"}]}), "nsatisfiable"),
    (dict(json={"properties": {f"p{i}": {"type": "integer"} for i in range(1500)}}), "too large"),
    (dict(grammar="root ::= " + "(" * 9000), "grammar"),
    (dict(grammar="start: " + "(" * 9000), "nested"),
]


@pytest.mark.parametrize(("form", "why"), WRONG, ids=[f"{i}-{why}" for i, (_, why) in enumerate(WRONG)])
def test_wrong_ones(form, why):
    with pytest.raises(ValueError, match=re.escape(why)) as error:
        Form.of(form)
    assert str(error.value).startswith("structured_outputs")
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(("form", "why"), IMPOSSIBLE, ids=lambda x: str(x)[:40])
def test_impossible_ones(llm, form, why):
    with pytest.raises(ValueError, match=re.escape(why)) as error:
        structured(llm, **form)
    assert str(error.value).startswith("structured_outputs")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_endless_ones_end_with_max_tokens(run):
    """A recursive schema, and one without an end, are forms like any others."""
    chain = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}}
    endless = dict(json=chain), dict(regex="(very ){50,}long")
    brackets, words = run(*((form, dict(max_tokens=20)) for form in endless))
    for completion in (brackets, words):
        assert (completion.finish_reason, len(completion.token_ids)) == ("length", 20)
    assert re.fullmatch(r"(\[ ?)+", brackets.text)
    assert ("very " * 50).startswith(words.text)


def test_refused_before_anything_is_computed(stage, engines):
    llm = engines(stage)
    before = llm.stats.num_forwards
    with pytest.raises(ValueError, match=r"structured_outputs.regex: .*unclosed group"):
        params_of(llm, dict(regex="(a"))
    with pytest.raises(ValueError, match="ignore_eos can't be combined with structured_outputs"):
        params_of(llm, dict(choice=["a"]), ignore_eos=True)
    assert llm.stats.num_forwards == before


def test_without_the_package(llm, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match=r'llguidance: pip install "stagewise\[structured\]"'):
        structured(llm, choice=["yes"])
