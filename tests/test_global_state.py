"""Nothing depends on torch's global state: default dtype and device, autocast, deterministic algorithms, grad modes.

Other code in the engine's process may change it, before the engine is loaded or while it is used. And no kernel in C is
handed memory of another kind than it expects: it would not notice.
"""

import ast
import contextlib
import dataclasses
import functools
import gc

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.adapter import ROOT, STAGES, Stage, random_prompts

pytestmark = pytest.mark.usefixtures("one_thread")

FACTORIES = {
    *("arange", "as_tensor", "asarray", "empty", "empty_permuted", "empty_strided", "eye", "from_file", "full"),
    *("linspace", "logspace", "normal", "ones", "rand", "randint", "randn", "randperm", "range", "scalar_tensor"),
    *("tensor", "tril_indices", "triu_indices", "zeros"),
}
# Every way that a stage computes in: what `LLM` takes.
WAYS = [(stage, {}) for stage in STAGES[:5]]
WAYS += [(STAGES[4], {"attention_backend": "torch"})]
WAYS += [(STAGES[5], options) for options in (
    {},
    {"dtype": "bfloat16"},
    {"dtype": "float16"},  # the kernels have no linear layers of this type, but its attention
    {"disable": ["pages"]},
    {"disable": ["linear"], "attention_backend": "torch"},
)]  # fmt: skip
WAYS += [(STAGES[6], {}), (STAGES[7], {"weights": "int8"})]
names = [f"{stage.command} {' '.join(map(str, options.values()))}".strip() for stage, options in WAYS]
PROMPTS = random_prompts(200, [3, 9, 5, 2])
every_way = pytest.mark.parametrize(("stage", "options"), WAYS, ids=names)


@contextlib.contextmanager
def setting(change, value, before):
    change(value)
    try:
        yield
    finally:
        change(before)


def default_dtype(dtype: torch.dtype):
    return setting(torch.set_default_dtype, dtype, torch.get_default_dtype())


STATES = {
    "dtype": lambda: default_dtype(torch.float64),
    "device": lambda: setting(torch.set_default_device, "meta", None),
    "in a device context": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "grad": torch.enable_grad,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def load(stage: Stage, options: dict, checkpoint):
    cache = {"num_blocks": 40} if stage.number >= 5 else {"kv_cache_bytes": 1 << 20} if stage.number >= 3 else {}
    return stage.LLM(str(checkpoint), device="cpu", **options, **cache)


def everything(llm, stage: Stage) -> list:
    """The results of everything that a stage can do, one step at a time."""
    params = functools.partial(stage.SamplingParams, max_tokens=4, ignore_eos=True, logprobs=2)
    later = {"prompt_logprobs": 1} if stage.number >= 4 else {}
    samplings = [
        params(temperature=0, **later),
        params(temperature=0, min_tokens=2, repetition_penalty=1.3, frequency_penalty=0.3, presence_penalty=0.7),
        params(seed=3, temperature=0.7, top_k=20, top_p=0.9, min_p=0.01, frequency_penalty=0.3),
        params(seed=4, **({"n": 3} if stage.number >= 5 else {})),
    ]
    results = [(o.outputs, getattr(o, "prompt_logprobs", None)) for o in llm.generate(PROMPTS, samplings)]
    results += [event.token_ids for event in llm.stream(PROMPTS[:2], samplings[:2])]
    if stage.number >= 4:
        results += llm.score([[5, 6], [7]], [[8, 9], [1, 2]])
    if stage.number >= 5:
        results += [o.outputs for o in llm.beam_search(PROMPTS[:1], beam_width=2, max_tokens=4)]
    return results


@pytest.fixture(scope="module")
def undisturbed(small_checkpoint):
    """(stage, options) -> an engine and its results, made while the global state is untouched."""
    made = {}

    def get(stage, options):
        key = stage.number, repr(options)
        if key not in made:
            llm = load(stage, options, small_checkpoint)
            made[key] = llm, everything(llm, stage)
        return made[key]

    return get


@pytest.mark.parametrize("state", STATES)
@every_way
def test_the_same_tokens_in_any_state(stage, options, state, undisturbed, small_checkpoint):
    llm, expected = undisturbed(stage, options)
    with STATES[state]():
        assert everything(llm, stage) == expected, "changed after loading"
        other = load(stage, options, small_checkpoint)
        assert everything(other, stage) == expected, "changed before loading"
    assert everything(other, stage) == expected, "changed while loading"


class Watch(TorchDispatchMode):
    """Records every operation that makes numbers of an unrequested type."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype, self.count, self.found = dtype, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.count += 1
        for tensor in out if isinstance(out, list | tuple) else [out]:
            # On the meta device the model is built, of no memory and of any type: its weights come later.
            if isinstance(tensor, torch.Tensor) and tensor.dtype == self.dtype and not tensor.is_meta:
                self.found.add(str(func))
        return out


@every_way
def test_nothing_has_the_default_dtype(stage, options, undisturbed, small_checkpoint, monkeypatch):
    """Even where no token would change: an integer tensor times a float, for example, has the default dtype."""
    _, expected = undisturbed(stage, options)
    other = torch.bfloat16 if options.get("dtype") == "float16" else torch.float16
    with default_dtype(other), Watch(other) as watch:
        if stage.number >= 4:  # a watch is for one thread, and this engine has its own
            llm = stage.part("llm")
            monkeypatch.setattr(llm, "Engine", lambda config, Engine=llm.Engine: watch.__enter__() and Engine(config))
        assert everything(load(stage, options, small_checkpoint), stage) == expected
    assert watch.count > 100
    assert not watch.found


def sources(stage: Stage) -> list:
    return sorted((ROOT / stage.directory).rglob("*.py"))


def calls(tree: ast.AST, names) -> list[ast.Call]:
    """The calls of torch's functions with these names."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return [call for call in found if ast.unparse(call.func.value) == "torch" and call.func.attr in names]


def unnamed(source: str) -> list[str]:
    """The calls that make tensors without naming dtype and device."""
    tree = ast.parse(source)
    # The model is built where its runner says, on the meta device.
    exempt = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "embedding"]
    spared = {call for function in exempt for call in calls(function, FACTORIES)}
    return [
        f"{call.lineno}: {ast.unparse(call)}"
        for call in calls(tree, FACTORIES)
        if call not in spared and not {"dtype", "device"} <= {keyword.arg for keyword in call.keywords}
    ]


def test_every_tensor_names_its_dtype_and_device(stage):
    """And nothing sets a default, not even for a moment, in which another thread would have it."""
    found = {path.name: lines for path in sources(stage) if (lines := unnamed(path.read_text(encoding="utf-8")))}
    assert not found
    assert not [path for path in sources(stage) if "torch.set_default" in path.read_text(encoding="utf-8")]
    made = [call for path in sources(stage) for call in calls(ast.parse(path.read_text(encoding="utf-8")), FACTORIES)]
    assert len(made) > 4
    assert unnamed("x = torch.zeros(3, dtype=torch.int64)") == ["1: torch.zeros(3, dtype=torch.int64)"]


# --- The boundary to C ----------------------------------------------------------------------------------------------

SPOILT = {
    "type": lambda t: t.to(torch.float64),
    "narrower": lambda t: t.to(torch.int32) if t.dtype == torch.int64 else t.to(torch.float64),
    "strides": lambda t: t.repeat_interleave(2, dim=-1)[..., ::2],
    "device": lambda t: t.to("meta"),
}
kernels = pytest.mark.parametrize("stage", STAGES[4:], ids=str)


def attention_arguments() -> dict:
    cache = torch.ones(3, 2, 4, 8), torch.ones(3, 2, 8, 4)
    whole = [torch.tensor(x) for x in ([[0, 1], [2, 0]], [0, 1, 2], [9, 3])]
    names = ("query", "k_cache", "v_cache", "block_tables", "query_start_loc", "seq_lens")
    return dict(zip(names, (torch.ones(2, 2, 4), *cache, *whole), strict=True))


@pytest.mark.parametrize("how", SPOILT)
@kernels
def test_attention_is_handed_nothing_else(stage, how):
    kernel, arguments = stage.part("kernels.c_kernel"), attention_arguments()
    right = kernel.paged_attention(**arguments)
    for name, tensor in arguments.items():
        spoilt = {**arguments, name: SPOILT[how](tensor)}
        if name == "query" and (how == "strides" or (stage.number == 5 and how != "device")):
            assert torch.equal(kernel.paged_attention(**spoilt).float(), right)  # it is copied
        else:
            with pytest.raises(TypeError, match="the C kernels take"):
                kernel.paged_attention(**spoilt)


BATCH = ("token_ids", "positions", "slot_mapping", "block_tables", "query_start_loc", "seq_lens", "logits_indices")


def test_the_step_is_handed_nothing_else(small_checkpoint, undisturbed):
    stage = STAGES[5]
    for options in ({}, {"disable": ["pages"]}):
        llm, expected = undisturbed(stage, options)
        model, real, spoilt = llm.engine.runner.model, [], []

        def forward(batch, cache, model=model, real=real, spoilt=spoilt):
            for name in BATCH:
                for how in ("narrower", "type", "strides", "device"):
                    if how != "strides" or getattr(batch, name).shape[-1] > 1:  # one number has no gaps
                        with pytest.raises(TypeError, match="the C kernels take"):
                            model(dataclasses.replace(batch, **{name: SPOILT[how](getattr(batch, name))}), cache)
                        spoilt.append(name)
            real.append(batch)
            return model(batch, cache)

        llm.engine.runner.model = forward
        try:
            assert everything(llm, stage) == expected
        finally:
            llm.engine.runner.model = model
        assert len(real) > 4
        assert len(spoilt) > 100


def test_the_other_kernels_are_handed_nothing_else():
    kernel, memory = (STAGES[5].part(name) for name in ("kernels.c_kernel", "memory"))
    sample = STAGES[5].part("kernels.c_sampler").CSampler()
    requests = [STAGES[5].make_request(STAGES[5].SamplingParams(temperature=0))] * 3
    best = [(0, None), (1, None), (2, None)]
    assert sample(torch.eye(3), requests) == best
    wide = torch.eye(3).repeat_interleave(2, dim=-1)[..., ::2]
    assert sample(wide, requests) == best  # it is copied
    assert torch.equal(kernel.pack(torch.eye(40).T, "fma_float32"), kernel.pack(torch.eye(40), "fma_float32"))
    logits = torch.eye(3)
    for spoil in (SPOILT["type"], SPOILT["device"]):
        with pytest.raises(TypeError, match="the C kernels take"):
            sample(spoil(torch.eye(3)), requests)
        with pytest.raises(TypeError, match="the C kernels take"):
            kernel.pack(spoil(torch.eye(40)), "fma_float32")
    with STATES["device"](), default_dtype(torch.float64):
        assert kernel.pack(torch.ones(40, 40, device="cpu", dtype=torch.float32), "fma_float32").is_cpu
        assert memory.Arena().alloc(64).is_cpu
        assert memory.empty((3,), torch.float32).is_cpu
        assert STAGES[5].part("kernels.c_sampler").CSampler()(logits, requests) == best


def test_no_engine_keeps_the_callers_garbage(stage, small_checkpoint):
    """Objects that the collector is told to ignore are never freed, nor are the caller's."""
    before = gc.get_freeze_count()  # conftest.py has told it so, and some of these objects may be freed meanwhile
    stage.LLM(str(small_checkpoint), device="cpu")
    assert gc.get_freeze_count() <= before
