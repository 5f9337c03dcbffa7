"""A plugin of pytest that points vLLM's tests, unchanged, at the server of this project.

Their `RemoteOpenAIServer` starts `vllm serve`; the one here starts `stagewise serve` with the bundled model, under the
name of the model that a test asks for. What they import of vLLM itself is an empty stand-in, except for the tokenizer,
the size of the vocabulary and the version. A test that needs more of vLLM tests its classes, and is left out.
`left_out.toml` says which tests are left out and why; all others run.
"""

# pyright: reportMissingImports=false
# (vLLM's tests have an environment of their own.)

import importlib
import importlib.abc
import importlib.machinery
import json
import re
import shutil
import sys
import types
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import openai
import pytest
import transformers
from safetensors.numpy import load_file, save_file

import tests
from tests.clients.conftest import CHAT_TEMPLATE
from tools.server import ROOT, server

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

TINYTALES = ROOT / "stagewise" / "models" / "tinytales"
VOCAB_SIZE = 50257
STANDS_IN_FOR = ("vllm", "fastapi", "pybase64")

# vLLM's flags under the names that they have here. None: it is so anyway, it concerns only speed or memory, or what
# needs it is left out.
FLAGS = {
    "--max-num-seqs": "--max-num-seqs",
    "--max-num-batched-tokens": "--max-num-batched-tokens",
    "--max-logprobs": "--max-logprobs",
    "--no-enable-prefix-caching": "--no-prefix-caching",
    "--root-path": None,
    "--enable-lora": None,
    "--lora-modules": None,
    "--max-lora-rank": None,
    "--max-cpu-loras": None,
    "--return-tokens-as-token-ids": None,
    "--max-model-len": None,  # see `model_of`
    "--dtype": None,
    "--port": None,
    "--gpu-memory-utilization": None,
    "--enforce-eager": None,
    "--enable-chunked-prefill": None,
    "--enable-prompt-tokens-details": None,
    "--enable-tokenizer-info-endpoint": None,
    "--show-hidden-metrics-for-version": None,
    "--enable-auto-tool-choice": None,
    "--tool-call-parser": None,
    "--reasoning-parser": None,
    "--structured-outputs-config.backend": None,
    "--load-format": None,
    "--skip-tokenizer-init": None,
}


def model_of(max_model_len: int, folder: Path) -> Path:
    """The bundled model, with so many positions. Beyond 1024 it has the same ones again: no test asks what it says
    there, but many ask for a context of 8192."""
    config = json.loads((TINYTALES / "config.json").read_text(encoding="utf-8"))
    path = folder / f"tinytales-{max_model_len}"
    if max_model_len <= config["n_positions"]:
        return TINYTALES
    if not path.exists():
        shutil.copytree(TINYTALES, path)
        weights = load_file(path / "model.safetensors")
        (name,) = (name for name in weights if name.endswith("wpe.weight"))
        weights[name] = np.resize(weights[name], (max_model_len, config["n_embd"]))
        save_file(weights, path / "model.safetensors")
        config["n_positions"] = max_model_len
        (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def translated(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """vLLM's flags by name, and those of this server. Raises ValueError for one that is not known here."""
    given: dict[str, str] = {}
    for argument in [part for one in arguments for part in one.split("=", 1)]:
        if argument.startswith("--"):
            given[last := argument] = ""
        else:
            given[last] = argument
    if unknown := given.keys() - FLAGS.keys():
        raise ValueError(f"flags of vLLM that plugin.py does not know: {', '.join(sorted(unknown))}")
    pairs = [(FLAGS[name], value) for name, value in given.items()]
    return given, [part for name, value in pairs if name for part in ((name, value) if value else (name,))]


class RemoteOpenAIServer:
    """What vLLM's tests start, and ask by this interface."""

    DUMMY_API_KEY = "token-abc123"
    folder: Path  # for models
    show_hidden_metrics = False

    def __init__(self, model: str, arguments: list[str], *, env_dict: dict | None = None, **_: object):
        given, ours = translated([str(argument) for argument in arguments])
        length = int(given.get("--max-model-len") or 1024)
        if key := (env_dict or {}).get("VLLM_API_KEY"):
            ours += ["--api-key", key]
        names = ["--model", model_of(length, self.folder), "--served-model-name", model]
        self._server = server("--quiet", "--chat-template", CHAT_TEMPLATE, "--max-model-len", length, *names, *ours)

    def __enter__(self) -> "RemoteOpenAIServer":
        self.url_root, _ = self._server.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._server.__exit__(*error)

    def url_for(self, *parts: str) -> str:
        return "/".join((self.url_root, *parts))

    def get_client(self, **more: object) -> openai.OpenAI:
        return openai.OpenAI(**self._settings(more))

    def get_async_client(self, **more: object) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._settings(more))

    def _settings(self, more: dict) -> dict:
        settings = {"base_url": self.url_for("v1"), "api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 600}
        return settings | more


def get_tokenizer(*_: object, **__: object) -> transformers.PreTrainedTokenizerBase:
    tokenizer = transformers.GPT2Tokenizer.from_pretrained(TINYTALES)
    tokenizer.chat_template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    return tokenizer


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of which every attribute is there and does nothing, but for those that `real` has."""

    def __init__(self, real: dict[str, dict]):
        self.real = real

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in STANDS_IN_FOR:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def exec_module(self, module):
        module.__dict__.update(self.real.get(module.__name__, {}))
        module.__getattr__ = lambda name: self.attribute(module.__name__, name)

    def attribute(self, module, name):
        if name.startswith("__"):
            raise AttributeError(name)
        inner = f"{module}.{name}"
        return importlib.import_module(inner) if inner in self.real else MagicMock(name=inner)


def module(name: str, **contents: object) -> None:
    made = types.ModuleType(name)
    made.__dict__.update(contents)
    sys.modules[name] = made


def install() -> None:
    """Put the stand-ins where the tests import from."""
    config = MagicMock()
    config.return_value.get_vocab_size.return_value = VOCAB_SIZE
    real = {
        "vllm.tokenizers": {"get_tokenizer": get_tokenizer},
        "vllm.config": {"ModelConfig": config},
        "vllm.version": {"__version__": metadata.version("stagewise"), "_prev_minor_version": lambda: "0"},
        "vllm.envs": {"VLLM_USE_RUST_FRONTEND": False},
        "vllm.model_executor.model_loader.weight_utils": {"download_weights_from_hf": lambda name, **_: name},
    }
    sys.meta_path.insert(0, StandIns(real))
    transformers.AutoTokenizer.from_pretrained = get_tokenizer
    module("tests.utils", RemoteOpenAIServer=RemoteOpenAIServer, ROCM_EXTRA_ARGS=[])
    module("tests.conftest", LocalAssetServer=object)


@pytest.fixture(scope="session")
def local_asset_server():
    """Of pictures; no test that is kept looks at one."""


class LeftOut:
    """The list: reasons, and patterns of tests in which `*` is anything; one without parameters is for all of them."""

    def __init__(self, path: Path):
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["left_out"]
        self.patterns = {pattern: entry["reason"] for entry in entries for pattern in entry["tests"]}
        self.used: set[str] = set()

    def reason(self, name: str) -> str | None:
        """Why a test, or a whole file of them, is left out."""
        for pattern, reason in self.patterns.items():
            words = ".*".join(map(re.escape, pattern.split("*")))
            if re.fullmatch(rf"{words}(\[.*\])?", name):
                self.used.add(pattern)
                return reason
        return None


def pytest_addoption(parser):
    parser.addoption("--with-left-out", action="store_true", help="run those too")


def name_of(path: Path | str) -> str:
    return str(path).replace("\\", "/").split("tests/entrypoints/")[-1]


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """vLLM's package `tests` joins the one here, which has the same name."""
    tests.__path__.append(str(early_config.rootpath / "tests"))


def pytest_configure(config):
    config.left_out = LeftOut(Path(__file__).with_name("left_out.toml"))
    config.counts = Counter()
    worker = getattr(config, "workerinput", {}).get("workerid", "alone")
    RemoteOpenAIServer.folder = config.rootpath / "models" / worker
    install()


def pytest_ignore_collect(collection_path, config):
    """Files that are left out whole are not even imported."""
    if collection_path.suffix != ".py" or not (reason := config.left_out.reason(name_of(collection_path))):
        return None
    source = collection_path.read_text(encoding="utf-8")
    config.counts[reason] += len(re.findall(r"^\s*(?:async )?def test_", source, re.MULTILINE))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    reasons = [config.left_out.reason(name_of(item.nodeid)) for item in items]
    config.counts.update(filter(None, reasons))
    if not config.getoption("with_left_out"):
        config.hook.pytest_deselected(items=[item for item, reason in zip(items, reasons, strict=True) if reason])
        items[:] = [item for item, reason in zip(items, reasons, strict=True) if not reason]


def pytest_collection_finish(session):
    if stale := session.config.left_out.patterns.keys() - session.config.left_out.used:
        raise pytest.UsageError(f"left_out.toml names tests that are not there: {', '.join(sorted(stale))}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Each of xdist's workers has collected all tests; the one that ends last tells how many are left out."""
    node.config.counts = node.workeroutput.get("counts", {})


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["counts"] = dict(session.config.counts)


def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.section("left out")
    for reason, count in sorted(config.counts.items(), key=lambda pair: -pair[1]):
        terminalreporter.line(f"{count:5} {reason}")
