"""One adapter for all stages, so that every test runs on each of them unchanged."""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import io
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from tools.sync_stages import read_stages

ROOT = Path(__file__).parent.parent
TINYTALES = ROOT / "models" / "tinytales"


class Stage:
    """A stage: its modules by name, its engines, its command line."""

    def __init__(self, directory: str):
        self.directory = directory
        self.number = int(directory[5:7])
        self.command = directory[:7]  # python -m stage01

    def __str__(self) -> str:
        return self.directory

    def part(self, name: str):
        """A module of the stage, such as "sampler"."""
        return importlib.import_module(f"{self.directory}.{name}")

    @property
    def LLM(self):
        return importlib.import_module(self.directory).LLM

    @property
    def SamplingParams(self):
        return importlib.import_module(self.directory).SamplingParams

    def has_argument(self, name: str) -> bool:
        return name in {field.name for field in dataclasses.fields(self.part("config").EngineConfig)}

    @functools.cache  # noqa: B019 (stages live as long as the tests)
    def engine(self, model="tinytales", **arguments):
        """An engine, shared by the tests. Arguments of later stages are left out in those that do not know them."""
        known = {name: value for name, value in arguments.items() if self.has_argument(name)}
        return self.LLM(str(model), device="cpu", **known)

    # --- Looking inside ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def recorded_logits(self) -> Iterator[dict[tuple[str, int], torch.Tensor]]:
        """The logits that the sampler saw: (request id, number of output tokens before) -> [vocab_size]."""
        records, where = {}, self.part("runner" if self.number == 6 else "engine")
        original = where.sample

        def spy(logits, requests, *how):
            rows = requests if isinstance(requests, list) else [requests]
            for row, request in zip(logits.reshape(len(rows), -1), rows, strict=True):
                records[request.request_id, len(request.output_token_ids)] = row.clone()
            return original(logits, requests, *how)

        where.sample = spy
        try:
            yield records
        finally:
            where.sample = original

    def make_request(self, params, prompt_token_ids=(1,), output_token_ids=(), seed=0, eos_token_ids=()):
        """A request in the middle of its life."""
        request = self.part("request").Request(
            request_id="0",
            prompt=None,
            prompt_token_ids=list(prompt_token_ids),
            params=params,
            seed=seed,
            max_length=10**9,
            tokenizer=self.tokenizer(),
            eos_token_ids=tuple(eos_token_ids),
        )
        request.output_token_ids.extend(output_token_ids)
        return request

    @functools.cache  # noqa: B019
    def tokenizer(self, directory: Path = TINYTALES):
        return self.part("tokenizer").Tokenizer(directory)

    def sample(self, logits: torch.Tensor, requests: list) -> list[tuple]:
        """(token, logprobs) for each row of logits, [n_rows, vocab_size]."""
        sample = self.part("sampler").sample
        if self.number == 1:
            return [sample(row, request) for row, request in zip(logits, requests, strict=True)]
        return sample(logits, requests)

    def filtered(self, logits: torch.Tensor, requests: list) -> torch.Tensor:
        """The scores that are drawn from, after penalties, temperature and filters: [n_rows, vocab_size]."""
        sampler, seen = self.part("sampler"), []
        original = sampler.draw
        sampler.draw = lambda scores, u: seen.append(scores) or original(scores, u)
        try:
            self.sample(logits, requests)
        finally:
            sampler.draw = original
        return torch.cat([scores.reshape(-1, logits.shape[-1]) for scores in seen])

    # --- The command line -------------------------------------------------------------------------------------------

    def main(self, *arguments: str) -> tuple[int, str, str]:
        """Run the command line in this process: exit status, stdout, stderr."""
        stdout, stderr = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            try:
                status = self.part("cli").main([str(a) for a in arguments])
            except SystemExit as exit:  # argparse
                status = exit.code
        return status, stdout.getvalue(), stderr.getvalue()

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        """Start the command line as a user would, in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", self.command, *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Run the command line in a process of its own: exit status, stdout, stderr."""
        process = self.start(*arguments, **environment)
        stdout, stderr = process.communicate(timeout=1200)
        return process.returncode, stdout, stderr


class OwnEngine:
    """An engine of somebody's own: any directory that has `LLM` and `SamplingParams`. Nothing else of it is known.

    Raises:
        ValueError: there is no such package, or it lacks one of the two.
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory).resolve()
        if not (self.directory / "__init__.py").is_file():
            raise ValueError(f"{directory} is no engine: it has no __init__.py")
        # A name that no other module has, whatever the directory is called.
        name = f"own_engine_{sum(name.startswith('own_engine_') for name in sys.modules)}"
        spec = importlib.util.spec_from_file_location(
            name, self.directory / "__init__.py", submodule_search_locations=[str(self.directory)]
        )
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for part in ("LLM", "SamplingParams"):
            if not hasattr(module, part):
                raise ValueError(f"{directory} is no engine: its __init__.py has no {part}")
        self.LLM, self.SamplingParams = module.LLM, module.SamplingParams

    def __str__(self) -> str:
        return self.directory.name

    def engine(self, model: str | Path, options: dict, **needed):
        """An engine of it. Options that it does not know are left out; what is needed raises TypeError then."""
        while True:
            try:
                return self.LLM(str(model), **options, **needed)
            except TypeError as error:
                unknown = unknown_argument(error, options)
                if unknown is None:
                    raise
                options = {name: value for name, value in options.items() if name != unknown}


def unknown_argument(error: TypeError, names: Iterable[str]) -> str | None:
    """Which of these keyword arguments a call did not know, if that is what the error says."""
    if "unexpected keyword" not in str(error):
        return None
    return next((name for name in names if f"'{name}'" in str(error)), None)


STAGES = [Stage(directory) for directory in read_stages()]
BATCHED = [stage for stage in STAGES if stage.number >= 2]


def stages_that_change(*names: str) -> list[Stage]:
    """The stages in which one of these files is not byte for byte the one of the stage before: in the others it would
    only be tested again."""
    listed = read_stages()
    return [stage for stage in STAGES if {listed[stage.directory].get(name) for name in names} & {"new", "changed"}]


EOS = 50256


def write_checkpoint(directory: Path, seed: int = 0, **sizes) -> Path:
    """A random checkpoint, written by transformers. Weights are large enough for the logits to differ."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(initializer_range=0.2, bos_token_id=0, **{"eos_token_id": 0, **sizes}))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # transformers starts them at zero, which would hide a bias that is left out
            torch.nn.init.normal_(parameter, std=0.1)
        elif "ln_" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
    model.save_pretrained(directory)
    return directory


def random_prompts(vocab_size: int, lengths: list[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, vocab_size, (n,), generator=generator).tolist() for n in lengths]
