"""For every limit and bad value of the contract, a ValueError that names the field or prompt, before anything runs."""

import math

import pytest
import torch

from stagewise.sampling import Sampling
from tests.adapter import STAGES

pytestmark = pytest.mark.covers("support/sampling_params.py")
of_options = pytest.mark.covers("support/options.py")
of_prompts = pytest.mark.covers("support/inputs.py")

BAD_PARAMS = {
    "temperature": [-0.1, 1e-6, math.nan, math.inf, "1", True, 1e9, 10**400],
    "top_k": [-1, 1.5, "3", True, 2**31],
    "top_p": [0, 1.01, -0.5, math.nan, None],
    "min_p": [-0.01, 1.5, math.nan],
    "repetition_penalty": [0, -1, math.inf, "x", 1e-40],
    "presence_penalty": [math.nan, "1", 1000],
    "frequency_penalty": [math.inf, None],
    "seed": [-2, 1.0, "a", 2**64, True],
    "max_tokens": [-5, 1.5, None, True],
    "min_tokens": [-1, 65, 2.0],
    "stop": ["", ["a", ""], [1], 5, None, {"a"}],
    "stop_token_ids": ["1", [-1], [1.5], ["a"], 7, [True]],
    "ignore_eos": [1, None, "yes"],
    "logprobs": [-2, 2.5, "3", True],
    "logits_processors": [5, [5], "f", print],
    "include_stop_str_in_output": [1, None],
    "skip_special_tokens": [0, "no"],
}
BAD_FIELDS = {
    "logit_bias": [{-1: 1.0}, {"x": 1}, {3: 101}, {3: math.nan}, {3: "1"}, [3], {1.5: 1}, {"9" * 5000: 1}, {True: 1}],
    "bad_words": ["", [""], ["a", " "], [3], 5, "\n"],
    "allowed_token_ids": [[], [-1], ["a"], 5, "5"],
    "structured_outputs": ["yes", ["yes"], {}, {"choices": ["yes"]}],
    "truncate_prompt_tokens": [0, -2, 1.5, "3"],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in BAD_PARAMS.items() for v in values])
def test_bad_sampling_params(stage, field, value):
    with pytest.raises(ValueError, match=field):
        stage.SamplingParams(**{field: value})


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in BAD_FIELDS.items() for v in values])
def test_bad_sampling_fields(field, value):
    with pytest.raises(ValueError, match=field):
        Sampling(STAGES[0], **{field: value})


def test_parameters_of_vllm_that_are_not_here():
    with pytest.raises(ValueError, match="best_of is no sampling parameter of stage05_paged"):
        Sampling(STAGES[4], best_of=2)


RANGES = {  # the least and the largest value
    "temperature": (0, 1e5),
    "top_k": (0, 2**31 - 1),
    "top_p": (0, 1),  # but for 0 itself
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "presence_penalty": (-100, 100),
    "frequency_penalty": (-100, 100),
    "seed": (0, 2**64 - 1),
    "max_tokens": (0, None),
    "min_tokens": (0, 64),
    "logprobs": (-1, None),
}


@pytest.mark.parametrize("field", RANGES)
def test_the_ends_of_the_ranges(stage, field):
    low, high = RANGES[field]
    whole = type(getattr(stage.SamplingParams(), field)) is not float
    limits = f"of at least {low}" if high is None else f"from {low} to {high}"
    for end, outwards in ((low, -1), (10**12 if high is None else high, 1)):
        if (field, end) != ("top_p", 0):
            assert getattr(stage.SamplingParams(**{field: end}), field) == end
        beyond = end + outwards if whole else math.nextafter(end, outwards * math.inf)
        if outwards < 0 or high is not None:
            with pytest.raises(ValueError, match=f"{field} must be a {'whole ' * whole}number {limits}, got {beyond}"):
                stage.SamplingParams(**{field: beyond})


def test_what_sampling_params_become(stage):
    """Their defaults, and values that are stored in a different form than given."""
    zero = dict.fromkeys(("top_k", "min_p", "presence_penalty", "frequency_penalty", "min_tokens"), 0)
    one = dict.fromkeys(("temperature", "top_p", "repetition_penalty"), 1)
    no = dict.fromkeys(("ignore_eos", "include_stop_str_in_output"), False)
    others = dict(seed=None, logprobs=None, max_tokens=64, stop=(), stop_token_ids=(), logits_processors=())
    plain = {**zero, **one, **no, **others, "skip_special_tokens": True}
    assert {name: getattr(stage.SamplingParams(), name) for name in plain} == plain
    many = range(65_530, 65_540)
    assert stage.SamplingParams(stop_token_ids=many).stop_token_ids == tuple(many)
    assert stage.SamplingParams(stop=[*map(str, many)]).stop == tuple(map(str, many))
    assert stage.SamplingParams(logits_processors=[max] * 10).logits_processors == (max,) * 10


def test_sampling_params_are_frozen_and_closed(stage):
    with pytest.raises(AttributeError):
        stage.SamplingParams().temperature = 2.0
    with pytest.raises(TypeError, match="best_of"):
        stage.SamplingParams(best_of=2)
    assert stage.SamplingParams(stop="a").stop == ("a",)
    assert stage.SamplingParams(stop=["a", "b"], stop_token_ids=[1]) == stage.SamplingParams(
        stop=("a", "b"), stop_token_ids=(1,)
    )


@of_options
@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (dict(model="gpt5"), "gpt5"),
        (dict(model="/no/such/directory"), "/no/such/directory"),
        (dict(dtype="int8"), "dtype"),
        (dict(device="tpu"), "device"),
        (dict(device="cuda:99"), "cuda:99"),
        (dict(device="cpu:x"), "cpu:x"),
        (dict(load_format="gguf"), "load_format"),
        (dict(max_model_len=1), "max_model_len"),
        (dict(max_model_len=1025), "1024"),
        (dict(max_model_len="100"), "max_model_len"),
        (dict(seed=-1), "seed"),
        (dict(seed=0.5), "seed"),
        (dict(seed=None), "seed"),
    ],
)
def test_bad_engine_arguments(stage, arguments, names):
    with pytest.raises(ValueError, match=names):
        stage.LLM(**arguments)


@of_options
def test_unknown_engine_argument(stage):
    with pytest.raises(TypeError, match="tensor_parallel_size"):
        stage.LLM(tensor_parallel_size=2)


@of_prompts
@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([], "empty list"),
        ([1, 50257], "token 50257 is outside"),
        ([-1], "token -1 is outside"),
        ([1.5], "a string or a list of token ids"),
        ([True], "a string or a list of token ids"),
        (None, "a string or a list of token ids"),
        (17, "a string or a list of token ids"),
        (b"bytes", "a string or a list of token ids"),
        ({"prompt": "x"}, "a string or a list of token ids"),
        ("half a pair \ud83d", "not valid Unicode"),
    ],
)
def test_bad_prompts(stage, prompt, says):
    llm = stage.engine()
    before = llm.stats.num_forwards
    with pytest.raises(ValueError, match=says) as error:
        llm.generate(["fine", "fine too", prompt])
    assert "prompt 2" in str(error.value)
    assert llm.stats.num_forwards == before


@pytest.mark.covers("engine.py")
@pytest.mark.parametrize(("prompt", "says"), [([5] * 1024, "1024"), ("word " * 2000, "max_model_len 1024")])
def test_prompts_that_do_not_fit(stage, prompt, says):
    llm = stage.engine()
    before = llm.stats.num_forwards
    with pytest.raises(ValueError, match=rf"prompt 1: .*{says}"):
        llm.generate(["fine", prompt])
    assert llm.stats.num_forwards == before


@of_prompts
def test_bad_prompt_lists(stage):
    llm = stage.engine()
    with pytest.raises(ValueError, match="prompt 0"):  # a prompt of token ids that was not put into a list
        llm.generate([464, 2068])
    with pytest.raises(ValueError, match="prompt 0: a prompt is a string or a list of token ids, got"):
        llm.generate({"prompt": "x"})
    with pytest.raises(ValueError, match="2 prompts but 3 sampling_params"):
        llm.generate(["a", "b"], [stage.SamplingParams()] * 3)
    with pytest.raises(ValueError, match="prompt 1: sampling_params must be SamplingParams"):
        llm.generate(["a", "b"], [stage.SamplingParams(), {"temperature": 0}])


@of_prompts
def test_params_against_the_vocabulary(stage, small_checkpoint):
    llm = stage.engine(small_checkpoint)
    for params in (stage.SamplingParams(stop_token_ids=[211]), stage.SamplingParams(logprobs=212)):
        with pytest.raises(ValueError, match="vocabulary of 211"):
            llm.generate([[1]], params)
    with pytest.raises(ValueError, match="outside the model's vocabulary of 211"):  # GPT-2's tokens, a smaller model
        llm.generate(["Once upon a time"])


@pytest.mark.covers("support/sampling_params.py", "sampler.py")
def test_extreme_values_that_are_allowed(stage, small_checkpoint):
    """The ends of the ranges run."""
    extremes = [
        dict(top_k=2**31 - 1), dict(repetition_penalty=0.01), dict(repetition_penalty=100), dict(temperature=1e-5),
        dict(temperature=1e5), dict(top_p=1e-9), dict(min_p=1), dict(presence_penalty=-100, frequency_penalty=100),
        dict(seed=2**64 - 1), dict(max_tokens=10**12), dict(logprobs=211), dict(temperature=2, min_p=1, top_k=1),
        dict(logprobs=-1, max_tokens=1),
    ]  # fmt: skip
    params = [stage.SamplingParams(**extreme) for extreme in extremes]
    outputs = stage.engine(small_checkpoint).generate(iter([[1, 2, 3]] * len(params)), iter(params))
    assert all(output.finished for output in outputs)
    assert len(outputs[-1].outputs[0].logprobs[0]) == 211


@of_options
def test_what_options_stand_for(stage, monkeypatch):
    device_of, cpu, cuda = stage.part("device"), torch.device("cpu"), torch.device("cuda")
    for device, there in ((cpu, False), (cuda, True)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        monkeypatch.setattr(torch.cuda, "device_count", lambda there=there: int(there))
        assert device_of.pick_device("auto") == device
    assert device_of.pick_device("cuda:0").index == 0
    for device in ("cuda:1", "meta"):
        with pytest.raises(ValueError, match=device):
            device_of.pick_device(device)
    picked = [device_of.pick_dtype(*of) for of in (("auto", cpu), ("auto", cuda), ("float16", cuda))]
    assert picked == [torch.float32, torch.bfloat16, torch.float16]
    assert device_of.describe_device(cpu, torch.float32) == f"cpu ({torch.get_num_threads()} threads), float32"
    assert [stage.part("options").pick_max_model_len(asked, 48) for asked in (None, 48, 20)] == [48, 48, 20]
    with pytest.raises(ValueError, match="at most 48"):
        stage.part("options").pick_max_model_len(49, 48)


@of_prompts
def test_a_single_text_is_one_prompt(stage):
    params = stage.SamplingParams(temperature=0, max_tokens=3)
    assert [o.outputs for o in stage.engine().generate("A fox", params)] == [
        o.outputs for o in stage.engine().generate(["A fox"], params)
    ]


@of_prompts
def test_the_empty_text_is_the_end_token(stage):
    params = stage.SamplingParams(temperature=0, max_tokens=3)
    empty, token = stage.engine().generate(["", [50256]], params)
    assert empty.prompt == ""
    assert token.prompt is None
    assert empty.prompt_token_ids == token.prompt_token_ids == [50256]
    assert empty.outputs == token.outputs


# --- Options ---------------------------------------------------------------------------------------------------------

DEFAULTS = {  # where a stage brings or changes them
    1: dict(max_model_len=None, seed=0),
    2: dict(max_num_seqs=8, sort_by_length=True),
    3: dict(kv_cache_bytes=None),
    4: dict(max_num_batched_tokens=512),
    5: dict(max_num_seqs=64, block_size=16, num_blocks=None, enable_prefix_caching=True, watermark=0.01),
    6: dict(disable=()),
    7: dict(num_drafts="auto"),
    8: dict(weights="auto"),
}
OPTION_RANGES = {
    "max_model_len": (2, None),
    "max_num_seqs": (1, None),
    "seed": (0, 2**64 - 1),
    "kv_cache_bytes": (1, None),
    "max_num_batched_tokens": (1, None),
    "block_size": (1, 1024),
    "num_blocks": (1, None),
    "num_drafts": (1, 16),
}


@pytest.mark.covers("config.py", "support/options.py")
def test_defaults_and_ranges_of_options(stage):
    config = stage.part("config").EngineConfig
    assert {name: getattr(config(), name) for name in DEFAULTS[stage.number]} == DEFAULTS[stage.number]
    for name in filter(stage.has_option, OPTION_RANGES):
        low, high = OPTION_RANGES[name]
        limits = f"from {low} to {high}" if high else f"of at least {low}"
        for end, beyond in [(low, low - 1), *([(high, high + 1)] if high else [])]:
            assert getattr(config(**{name: end}), name) == end
            with pytest.raises(ValueError, match=f"{name} must be a whole number {limits}, got {beyond}"):
                config(**{name: beyond})


@pytest.mark.covers("support/llm_base.py")
def test_what_an_engine_says_of_itself(stage, small_checkpoint):
    llm = stage.LLM(str(small_checkpoint), device="cpu", max_model_len=40)
    assert (llm.max_model_len, llm.vocab_size, llm.config.seed) == (40, 211, 0)
    assert llm.get_tokenizer() is llm.engine.tokenizer
    assert llm.describe().startswith("cpu (")
    llm.generate([[1]], stage.SamplingParams(max_tokens=2, ignore_eos=True))
    assert llm.stats.num_output_tokens == 2
    llm.stats = type(llm.stats)()
    assert llm.engine.stats.num_output_tokens == llm.stats.num_output_tokens == 0
    llm.validate([1, 2], stage.SamplingParams())
    assert llm.generate([[1]], stage.SamplingParams(max_tokens=1))[0].request_id == "1"  # which seeds its draws
    with pytest.raises(ValueError, match="211"):
        llm.validate([211], stage.SamplingParams())
