"""Runs a command on a CPU that seems to have no more than AVX2: like most laptops, but on a server with AVX-512.

    PIP_NO_CACHE_DIR=1 python -m bench.avx2_only python -m bench.peers llama-cpp    # compiled for that CPU
    python -m bench.avx2_only python -m bench.throughput --stages 6 --peers openvino,vllm,llama-cpp

Libraries have settings for this, but they don't reach all code: some of OpenVINO's products ask the CPU themselves. So
the answers of the instruction `cpuid` are changed (bench/avx2_only.c) for every process of the command, and stage 6 is
compiled for AVX2. This needs Linux and an Intel CPU. The clock and the caches are still the server's.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = Path(__file__).parent.parent / ".peers/avx2_only.so"


def main() -> None:
    if not sys.argv[1:] or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        sys.exit("bench.avx2_only needs Linux and an Intel CPU")
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("bench.avx2_only needs a C compiler (cc)")
    LIBRARY.parent.mkdir(exist_ok=True)
    made = LIBRARY.with_suffix(f".{os.getpid()}")  # another process may be compiling it, too
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", SOURCE, "-o", made, "-ldl"], check=True)
    made.rename(LIBRARY)
    os.environ |= {"LD_PRELOAD": str(LIBRARY), "STAGEWISE_MARCH": "x86-64-v3"}
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error.strerror}")


if __name__ == "__main__":
    main()
