"""From stage 5 on: how the C kernels are compiled, kept for the next start, and loaded, whatever the machine does."""

import errno
import os
import shlex
import stat
import time

import pytest
import torch

from tests.adapter import stages_that_change

CPU = torch.device("cpu")
LIMIT = 60  # seconds, for what takes one: machines can be ten times slower
posix = pytest.mark.skipif(os.name == "nt", reason="modes and owners of files")


@pytest.fixture(params=stages_that_change("support/compiler.py"), ids=str)
def stage(request):
    return request.param


@pytest.fixture
def compiler(stage, tmp_path, monkeypatch):
    """The compiler's module, with an empty cache directory. It compiles functions that do nothing: these tests are not
    about what the kernels compute."""
    kernel, module = stage.part("kernels.c_kernel"), stage.part("compiler")
    alone = getattr(kernel, "ALONE", ())
    names = [*(f"{name}_alone" for name in alone), "forward", "has_kind", "sampler_bytes", "paged_attention"]
    source = tmp_path / "kernel.c"
    source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "SOURCES", [source])
    kernel.load_kernel.cache_clear()
    yield module
    kernel.load_kernel.cache_clear()


def load(stage):
    stage.part("kernels.c_kernel").load_kernel()


def fails(stage, caplog) -> str:
    """The one line that "auto" logs when it goes on with torch; asking for C explicitly raises it as an error."""
    caplog.clear()
    assert stage.part("attention").pick_backend("auto", CPU, 64)[0] == "torch"
    (record,) = caplog.records
    said = record.getMessage().removeprefix("attention_backend is torch, the slow one: ")
    assert "\n" not in said
    with pytest.raises(ValueError, match="attention_backend 'c' does not run here"):
        stage.part("attention").pick_backend("c", CPU, 64)
    return said


def write_compiler(path, script):
    path.write_bytes(script if isinstance(script, bytes) else f"#!/bin/sh\n{script}\n".encode())
    path.chmod(0o755)
    return str(path)


# --- What is kept -----------------------------------------------------------------------------------------------------


def test_it_is_compiled_once(compiler, tmp_path, monkeypatch):
    first = compiler.compile_kernel()
    assert first.parent == tmp_path / "cache" / "stagewise"
    written = first.stat().st_ino
    assert compiler.compile_kernel() == first
    assert first.stat().st_ino == written
    monkeypatch.setattr(compiler, "cpu", lambda: "another CPU, which shares the directory")
    assert compiler.compile_kernel() != first
    monkeypatch.setattr(compiler, "FLAGS", ("-O1", "-fPIC"))
    compiler.compile_kernel()
    assert len(list(first.parent.glob("*.so"))) == len(list(first.parent.iterdir())) == 3  # and nothing else


def test_a_damaged_library(stage, compiler):
    """It is compiled again: loading part of a library would end the process with SIGBUS, at every start. What a process
    that was killed has left next to it does no harm."""
    directory = compiler.cache_directory()
    (directory / "tmpkilled").mkdir()
    (directory / "tmpkilled" / "kernel.so").write_bytes(b"half of a libr")
    library = compiler.compile_kernel()
    assert library.parent == directory
    whole = library.read_bytes()
    for damaged in (b"", whole[:100], whole[:-100], b"junk" * 9999):
        library.write_bytes(damaged)
        assert compiler.compile_kernel().read_bytes() == whole
    load(stage)


def test_a_cache_that_is_only_read(compiler, monkeypatch):
    """As in an image with the kernels in it: nothing is written where the library is there already."""
    library = compiler.compile_kernel()

    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(compiler.Path, "replace", read_only)
    assert compiler.compile_kernel() == library


def test_a_library_that_can_not_be_loaded(stage, compiler, tmp_path, monkeypatch, caplog):
    """It compiles, but every time to something that is not a library: "auto" goes on without it, with one log line."""
    bad = tmp_path / "bad.so"
    monkeypatch.setattr(stage.part("kernels.c_kernel"), "compile_kernel", lambda: bad.write_bytes(b"bad") and bad)
    assert "the compiled C kernel can't be loaded" in fails(stage, caplog)


@pytest.mark.soak
def test_processes_that_start_at_once(stage, tmp_path):
    processes = [
        stage.start("--prompts", "A fox", "--max-tokens", 3, "--attention-backend", "c", XDG_CACHE_HOME=str(tmp_path))
        for _ in range(4)
    ]
    results = [(*process.communicate(timeout=300), process.returncode) for process in processes]
    assert [status for _, _, status in results] == [0] * 4, results
    assert len({stdout for stdout, _, _ in results}) == 1
    assert len(list((tmp_path / "stagewise").iterdir())) == 1


# --- Whom to trust ----------------------------------------------------------------------------------------------------


@posix
def test_a_directory_that_others_may_write_to(compiler, tmp_path, caplog):
    before = os.umask(0o002)
    try:
        library = compiler.compile_kernel()
    finally:
        os.umask(before)
    assert stat.S_IMODE(library.parent.stat().st_mode) == 0o700
    for mode in (0o777, 0o775, 0o757):
        caplog.clear()
        library.parent.chmod(mode)
        assert compiler.cache_directory() == compiler.temporary_directory()
        assert f"the cache {library.parent} is not used: others can write to it" in caplog.text
    assert compiler.compile_kernel().parent == compiler.temporary_directory()


@posix
def test_a_directory_of_someone_else(compiler, tmp_path, monkeypatch):
    library, me = compiler.compile_kernel(), os.geteuid()
    monkeypatch.setattr(compiler.os, "geteuid", lambda: me + 1)
    assert compiler.cache_directory() == compiler.temporary_directory()
    monkeypatch.undo()
    library.parent.rename(tmp_path / "elsewhere")
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "cache" / "stagewise").symlink_to(tmp_path / "elsewhere")  # who made the link can make another
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert compiler.cache_directory() == compiler.temporary_directory()


# --- Where to keep it -------------------------------------------------------------------------------------------------


def test_where_the_cache_is(compiler, tmp_path, monkeypatch):
    """By its specification, a relative XDG_CACHE_HOME counts as unset; without a HOME, `~` is not a directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for relative in ("", "cache", "./cache", "~/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert compiler.cache_directory() == tmp_path / "home" / ".cache" / "stagewise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    for no_directory in ("home", str(tmp_path / "kernel.c")):
        monkeypatch.setenv("HOME", no_directory)
        assert compiler.cache_directory() == compiler.temporary_directory()
    monkeypatch.setattr(compiler.os.path, "expanduser", lambda path: path)  # no HOME, and nobody knows this user
    assert compiler.cache_directory() == compiler.temporary_directory()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "kernel.c"]


@pytest.mark.parametrize(("owner", "call"), [("tempfile", "mkdtemp"), ("shutil", "copy"), ("Path", "replace")])
def test_a_full_disk(stage, compiler, monkeypatch, owner, call):
    """A library that can't be stored is used by this process alone."""
    owner, kernel_cache = getattr(compiler, owner), compiler.cache_directory()
    original = getattr(owner, call)

    def full(*args, **kwargs):
        if any(str(where).startswith(str(kernel_cache)) for where in (*args, *kwargs.values())):
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, call, full)
    library = compiler.compile_kernel()
    assert library.parent == compiler.temporary_directory()
    assert list(kernel_cache.iterdir()) == []
    load(stage)


def test_no_room_for_temporary_files(stage, compiler, monkeypatch, tmp_path, caplog):
    def full(*_, **__):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(compiler.tempfile, "mkdtemp", full)
    assert "can't be loaded: [Errno 2] No usable temporary directory found" in fails(stage, caplog)


# --- The compiler -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", stages_that_change("support/compiler.py")[:1], ids=str)
def test_a_compiler_that_fails_is_told_by_the_command(stage, tmp_path):
    program = write_compiler(tmp_path / "broken-cc", "echo 'out of ink' >&2\nexit 1")
    environment = {"CC": program, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    status, _, stderr = stage.run("--prompts", "Once", "--max-tokens", 1, "--quiet", **environment)
    assert status == 0
    assert stderr == f"attention_backend is torch, the slow one: the C compiler {program} fails: out of ink\n"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("printf '\\377 error: caf\\351\\n' >&2; exit 1", "fails: \ufffd error: caf\ufffd"),
        ("[ $1 = --version ] || { echo note >&2; echo 'x.c: error: no' >&2; exit 3; }", "fails: x.c: error: no"),
        ("[ $1 = --version ] || exit 7", "fails: no message (status 7)"),
        ("kill -9 $$", "fails: no message (status -9)"),
        (b"\x7fELF, but no more", "does not run: Exec format error"),
    ],
)
def test_why_a_compiler_fails(stage, compiler, tmp_path, monkeypatch, caplog, script, says):
    program = tmp_path / "cc of mine"
    write_compiler(program, script)
    monkeypatch.setenv("CC", shlex.quote(str(program)))
    assert fails(stage, caplog) == f"the C compiler {program} {says}"


def test_a_compiler_that_makes_nothing(stage, compiler, tmp_path, monkeypatch, caplog):
    """And the name that it gives itself is no UTF-8."""
    monkeypatch.setenv("CC", write_compiler(tmp_path / "cc", "printf 'caf\\351 \\377\\n'"))
    assert "No such file or directory" in fails(stage, caplog)


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ("no-such-cc", "CC is 'no-such-cc', but there is no program 'no-such-cc'"),
        ("no-such-cc -m64", "CC is 'no-such-cc -m64', but there is no program 'no-such-cc'"),
        ("gcc 'x", 'CC is "gcc \'x", which is not a command: No closing quotation'),
    ],
)
def test_a_compiler_that_is_not_there(stage, compiler, monkeypatch, caplog, chosen, says):
    monkeypatch.setenv("CC", chosen)
    assert fails(stage, caplog) == says


@pytest.mark.parametrize("script", ["exec sleep 90", "sleep 90 & exit 0"])
def test_a_compiler_that_hangs(compiler, tmp_path, script):
    """Itself, or what it has started and left behind."""
    program, started = write_compiler(tmp_path / "cc", script), time.monotonic()
    with pytest.raises(RuntimeError, match=r"cc did not finish within 0.5 seconds"):
        compiler.run([program, "--version"], seconds=0.5)
    assert time.monotonic() - started < LIMIT


def test_a_compiler_with_arguments(stage, compiler, tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    plain = compiler.compile_kernel()
    log = tmp_path / "log"
    wrapper = write_compiler(tmp_path / "ccache", f'echo "$@" >> {log}\nexec "$@"')
    monkeypatch.setenv("CC", f"{wrapper} cc -DNOTHING='1 2'")
    library = compiler.compile_kernel()
    assert library != plain
    assert library.parent == plain.parent
    assert all(line.startswith("cc -DNOTHING=1 2 ") for line in log.read_text().splitlines())
    load(stage)
    monkeypatch.setenv("CC", "  ")  # as good as none
    assert compiler.compile_kernel() == plain
