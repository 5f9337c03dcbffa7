"""Controls of a request: each against the obvious way, token by token with Hugging Face's model, in every stage."""

import math

import pytest
import torch
from transformers import GPT2LMHeadModel

import stagewise
from stagewise import allowed_token_ids, bad_words, logit_bias, sampling_params
from stagewise.sampling import Sampling
from tests.adapter import EOS, STAGES, TINYTALES

pytestmark = pytest.mark.covers("support/logits_processors.py", "support/text.py", "sampler.py", "engine.py")
PROMPT = "Once upon a time"
LENGTH = 8  # of what each control is held to


def last_digit(prompt_token_ids, token_ids, logits):
    """A logits processor: the number of tokens so far says how a token's id ends."""
    return torch.where(torch.arange(len(logits)) % 10 == len(token_ids) % 10, logits, -math.inf)


def never_in_the_prompt(prompt_token_ids, token_ids, logits):
    logits[prompt_token_ids] = -math.inf
    return logits


CONTROLS = {
    "bias": dict(logit_bias={"50256": -100, 262: 4.5, 13: 100}),
    "a little bias": dict(logit_bias={13: 1.25, 11: 1.25, 257: -2}),
    "allowed": dict(allowed_token_ids=range(100, 900)),
    "one allowed": dict(allowed_token_ids=[5]),
    "a processor": dict(logits_processors=[last_digit]),
    "processors": dict(logits_processors=[last_digit, never_in_the_prompt], logit_bias={20: 50}),
    "bias and penalty": dict(logit_bias={13: 6, 257: 6}, repetition_penalty=1.7, presence_penalty=1.5),
    "allowed and min_tokens": dict(allowed_token_ids=[EOS, 13, 257], min_tokens=6),
}


def obvious(model, tokenizer, prompt, max_tokens, **controls):
    """Greedy decoding with controls, done as their documentation says."""
    prompt_ids = tokenizer.encode(prompt)
    token_ids, phrases = [], []
    for word in controls.get("bad_words", ()):
        phrases += [tokenizer.encode(word.lstrip()), tokenizer.encode(" " + word.lstrip())]
    while len(token_ids) < max_tokens:
        logits = model(torch.tensor([prompt_ids + token_ids])).logits[0, -1].float().clone()
        for process in controls.get("logits_processors", ()):
            logits = process(prompt_ids, token_ids, logits)
        for token_id, bias in controls.get("logit_bias", {}).items():
            logits[int(token_id)] += bias
        if "allowed_token_ids" in controls:
            forbidden = torch.ones(len(logits), dtype=torch.bool)
            forbidden[list(controls["allowed_token_ids"])] = False
            logits[forbidden] = -math.inf
        for phrase in phrases:
            if len(phrase) == 1 or token_ids[-len(phrase) + 1 :] == phrase[:-1]:
                logits[phrase[-1]] = -math.inf
        if len(token_ids) < controls.get("min_tokens", 0):
            logits[EOS] = -math.inf
        for token_id in {*prompt_ids, *token_ids}:
            penalty = controls.get("repetition_penalty", 1)
            logits[token_id] = logits[token_id] / penalty if logits[token_id] > 0 else logits[token_id] * penalty
        for token_id in set(token_ids):
            logits[token_id] -= controls.get("presence_penalty", 0)
        token_ids.append(int(logits.argmax()))
        if token_ids[-1] == EOS:
            break
    return token_ids


@pytest.fixture(scope="module")
def hugging_face():
    with torch.inference_mode():
        yield GPT2LMHeadModel.from_pretrained(TINYTALES, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def expected(hugging_face):
    """Each control's tokens, and the text that greedy decoding makes without any."""
    tokenizer = STAGES[0].tokenizer()
    plain = obvious(hugging_face, tokenizer, PROMPT, LENGTH)
    words = [tokenizer.decode(plain[2:3]), tokenizer.decode(plain[5:8]), "zebra"]
    controls = CONTROLS | {
        "bad words": dict(bad_words=words),
        "a bad text": dict(bad_words=tokenizer.decode(plain[4:7])),
    }
    listed = {"bad_words": controls["a bad text"]["bad_words"]}
    controls["a bad text"] = {"bad_words": [listed["bad_words"]]}
    results = {name: obvious(hugging_face, tokenizer, PROMPT, LENGTH, **given) for name, given in controls.items()}
    assert sum(tokens == plain for tokens in results.values()) == 0  # each changes something
    return controls, results, plain


def test_each_control(stage, expected):
    """Alone, and all of them in one batch with those that have none."""
    controls, results, plain = expected
    llm = stage.engine(max_num_seqs=16)
    params = {name: sampling_params(llm, temperature=0, max_tokens=LENGTH, **given) for name, given in controls.items()}
    for name, given in params.items():
        assert llm.generate([PROMPT], given)[0].outputs[0].token_ids == results[name], name
    nothing = stage.SamplingParams(temperature=0, max_tokens=LENGTH)
    mixed = [nothing, *params.values(), nothing]
    outputs = [output.outputs[0].token_ids for output in llm.generate([PROMPT] * len(mixed), mixed)]
    assert outputs == [plain, *(results[name] for name in params), plain]


def test_a_bias_is_added_as_it_is(stage):
    """The second best token gets nearly as much as it lacks, and a little more than that."""
    llm = stage.engine()
    params = stage.SamplingParams(temperature=0, max_tokens=1, logprobs=2)
    (entry,) = llm.generate([PROMPT], params)[0].outputs[0].logprobs
    (best, first), (other, second) = list(entry.items())[:2]
    for part, expected in ((0.996, best), (1.004, other)):
        bias = {other: part * (first.logprob - second.logprob)}
        processors = [logit_bias(bias)]
        params = stage.SamplingParams(temperature=0, max_tokens=1, logits_processors=processors)
        assert llm.generate([PROMPT], params)[0].outputs[0].token_ids == [expected]


@pytest.mark.parametrize(
    ("settings", "output", "expected"),
    [
        (dict(), [7], False),
        (dict(logits_processors=[last_digit]), [7], True),
        (dict(min_tokens=2), [7], True),
        (dict(min_tokens=2), [7, 7], False),
        (dict(min_tokens=2, logits_processors=[last_digit]), [7, 7], True),
    ],
)
@pytest.mark.parametrize("stage", STAGES[5:], ids=str)  # the first stage that asks is the sixth
def test_whose_logits_are_processed(stage, settings, output, expected):
    request = stage.make_request(stage.SamplingParams(**settings), output_token_ids=output)
    assert stage.part("logits_processors").is_processed(request) is expected


@pytest.mark.parametrize("word", ["rabbit", " rabbit", "fox", "bear", "Once upon", "."])
def test_a_bad_word_is_blocked_at_the_beginning_and_after_a_space(stage, word):
    """However many tokens it has in either place."""
    llm = stage.engine()
    for text in (word.lstrip(), " " + word.lstrip()):
        ids = stage.tokenizer().encode(text)

        def lead(prompt_token_ids, token_ids, logits):
            """Force the tokens of the word, up to its last one."""
            return logits.index_fill(0, torch.tensor(ids[len(token_ids)]), 1e4)  # noqa: B023

        def said(*words):
            how = dict(temperature=0, max_tokens=len(ids))  # noqa: B023
            params = stage.SamplingParams(**how, logits_processors=[lead, bad_words(llm, words)])
            return llm.generate([PROMPT], params)[0].outputs[0].text

        assert said() == text
        assert said(word) != text


def test_draws_are_of_what_is_allowed(stage):
    """Seeded draws, hot and cut: never a token that is not allowed; logprobs are the model's own all the same."""
    allowed = [11, 13, 257, 262, EOS]
    how = dict(temperature=5, max_tokens=40, seed=3, logprobs=0)
    params = stage.SamplingParams(**how, logits_processors=[allowed_token_ids(allowed)])
    (output,) = stage.engine().generate([PROMPT], params)
    token_ids = output.outputs[0].token_ids
    assert set(token_ids) <= set(allowed)
    assert len(set(token_ids)) > 1
    forced = dict(logits_processors=[logit_bias({13: 100})], max_tokens=1, logprobs=-1, seed=1)
    (entry,) = stage.engine().generate([PROMPT], stage.SamplingParams(**forced))[0].outputs[0].logprobs
    assert len(entry) == 50257
    assert sum(math.exp(one.logprob) for one in entry.values()) == pytest.approx(1, abs=1e-3)
    assert next(iter(entry)) == 13
    assert entry[13].rank > 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (dict(logit_bias={50257: 1}), "logit_bias token 50257 is outside the model's vocabulary"),
        (dict(allowed_token_ids=[1, 60000]), "allowed_token_ids 60000 is outside"),
        (dict(allowed_token_ids=[EOS], min_tokens=1), "allowed_token_ids leaves nothing to choose"),
        (dict(allowed_token_ids=[13], bad_words=["."]), "allowed_token_ids leaves nothing to choose"),
    ],
)
def test_fields_that_can_t_be_met(fields, says):
    """Nothing is computed, and no request is made."""
    with pytest.raises(ValueError, match=says):
        sampling_params(STAGES[0].engine(), **fields)


def test_processors_that_can_t_be_met(stage):
    """Where no model is known when they are made, the request fails alone."""
    llm, ends = stage.engine(), allowed_token_ids([EOS])
    wrong = [logit_bias({50257: 1}), allowed_token_ids([1, 60000])]
    params = [stage.SamplingParams(logits_processors=[one], max_tokens=4) for one in wrong]
    first, second = (output.outputs[0] for output in llm.generate([PROMPT] * 2, params))
    assert first.stop_reason == "logit_bias token 50257 is outside the model's vocabulary of 50257 tokens"
    assert second.stop_reason == "allowed_token_ids 60000 is outside the model's vocabulary of 50257 tokens"
    (output,) = llm.generate([PROMPT], stage.SamplingParams(logits_processors=[ends], min_tokens=3))
    assert output.outputs[0].token_ids == [EOS]  # processors that allow only the end come before min_tokens


# --- The text ---------------------------------------------------------------------------------------------------------


def texts(stage, **fields):
    """What a completion says, whole and streamed, which must be the same."""
    llm = stage.engine()
    params = sampling_params(llm, temperature=0, **fields)
    (whole,) = llm.generate([PROMPT], params)[0].outputs
    assert "".join(event.text for event in llm.stream([PROMPT], params)) == whole.text
    return whole


def test_the_stop_text_in_the_output(stage):
    plain = texts(stage, max_tokens=9)
    for start, length in ((5, 1), (9, 3), (14, 7)):
        stop = plain.text[start : start + length]
        without, included = (texts(stage, max_tokens=9, stop=stop, include_stop_str_in_output=x) for x in (False, True))
        assert included.text == without.text + stop == plain.text[: plain.text.index(stop) + length]
        assert (included.token_ids, included.stop_reason) == (without.token_ids, stop)
    token = plain.token_ids[7]
    included = texts(stage, max_tokens=9, stop_token_ids=[token], include_stop_str_in_output=True)
    assert included.text == stage.tokenizer().decode(included.token_ids)
    assert included.token_ids[-1] == token


def test_the_end_token_in_the_text(stage):
    end = dict(allowed_token_ids=[EOS, 13], logit_bias={EOS: 50}, max_tokens=3)
    assert texts(stage, **end).text == texts(stage, **end, skip_special_tokens=False).text == ""
    assert texts(stage, **end, skip_special_tokens=False, ignore_eos=True).text == "<|endoftext|>" * 3
    assert texts(stage, **end, ignore_eos=True).text == ""
    shown = dict(skip_special_tokens=False, include_stop_str_in_output=True)
    assert texts(stage, **end, **shown).text == "<|endoftext|>"


# --- Prompts and limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "max_tokens", "kept"),
    [(5, 3, 5), (39, 3, 39), (-1, 3, 37), (-1, 1000, 39), (-1, 39, 1), (-1, 1, 39), (-1, 0, 40)],
)
def test_truncated_prompts(most, max_tokens, kept):
    llm = STAGES[4].engine(max_model_len=40)
    sampling = Sampling(STAGES[4], max_tokens=max_tokens, prompt_logprobs=0, truncate_prompt_tokens=most)
    ids = list(range(60))
    llm.validate(ids[-kept:], sampling.params)  # no more than fit, and, up to the context, no fewer
    assert sampling.prompt(llm, ids) == ids[-kept:]
    assert sampling.prompt(llm, ids[-kept:]) == ids[-kept:]
    text = "Once upon a time, " * 20
    assert sampling.prompt(llm, text) == llm.get_tokenizer().encode(text)[-kept:]
    assert Sampling(STAGES[0]).prompt(llm, ids) == ids


def test_prompts_that_are_too_long(stage):
    """Nothing is truncated unless that is requested, and then no more than needed."""
    llm = stage.engine(max_model_len=40)
    with pytest.raises(ValueError, match="60 tokens leave no room"):
        llm.generate([list(range(60))])
    with pytest.raises(ValueError, match="truncate_prompt_tokens 100 is over max_model_len 40"):
        Sampling(stage, truncate_prompt_tokens=100).prompt(llm, [1])


def test_values_that_mean_something_else(stage):
    assert Sampling(stage, seed=-1).params == stage.SamplingParams()  # as vLLM
    assert Sampling(stage, temperature=1e-6).params.temperature == 1e-5
    assert Sampling(stage, logit_bias={}, bad_words=[], allowed_token_ids=None).given == {}
    assert logit_bias({"7": 1}).ids.token_ids == [7]


def test_a_users_subclass_and_what_is_no_llm(stage, small_checkpoint):
    """Whose stage ring 3 finds by the engine, which no subclass changes."""

    class Mine(stage.LLM):
        pass

    llm = Mine(str(small_checkpoint), device="cpu")
    assert sampling_params(llm, logit_bias={3: 1}, max_tokens=2).max_tokens == 2
    with stagewise.trace(llm) as trace:
        llm.generate([[1, 2]], stage.SamplingParams(max_tokens=1))
    assert (trace.header["stage"], len(trace.records)) == (stage.package, 1)
    for wrong in (stage.SamplingParams(), "tinytales", None):
        for call in (sampling_params, stagewise.trace, lambda llm: stagewise.structured(llm, choice=["a"])):
            with pytest.raises(TypeError, match="llm must be a stage's LLM or AsyncLLM, got"):
                call(wrong)
        with pytest.raises(TypeError, match="llm must be a stage's LLM or AsyncLLM, got"):
            stagewise.bad_words(wrong, ["a"])


@pytest.mark.covers("llm.py")
@pytest.mark.parametrize("stage", STAGES[3:], ids=lambda stage: stage.directory)
def test_an_async_llm_is_made_and_used_as_an_llm(stage, small_checkpoint):
    with stage.AsyncLLM(str(small_checkpoint), device="cpu") as engine:
        assert engine.llm.config.model == str(small_checkpoint)
        assert sampling_params(engine, max_tokens=2).max_tokens == 2
        with stagewise.trace(engine) as trace:
            engine.llm.generate([[1, 2]], stage.SamplingParams(max_tokens=1))
        assert len(trace.records) == 1


@pytest.mark.parametrize(("seed", "used"), [(5, 5), (-1, None), (-5, 2**64 - 5), (-(2**63), 2**63)])
def test_seeds_of_clients(seed, used):
    """OpenAI's are of 64 bits with a sign; vLLM's -1 is none."""
    assert Sampling(STAGES[4], seed=seed).params.seed == used
