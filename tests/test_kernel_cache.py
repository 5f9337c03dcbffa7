"""From stage 5 on: how the C kernels are compiled, kept for the next start, and loaded, whatever the machine does."""

import errno
import os
import shlex
import stat
import time

import pytest
import torch

from tests.adapter import stages_that_change

WITH_C = stages_that_change("support/compiler.py", "kernels/c_kernel.py")
CPU = torch.device("cpu")
LIMIT = 60  # seconds, for what takes one: machines can be ten times slower


# A stage that only has other kernels compiles and keeps them as the one before: make soak.
OWN = stages_that_change("support/compiler.py")


@pytest.fixture(params=[pytest.param(s, marks=[pytest.mark.soak] * (s not in OWN)) for s in WITH_C], ids=str)
def stage(request):
    return request.param


def use_a_small_source(stage, path):
    """Compile functions with the kernels' names that do nothing, since these tests don't check what they compute."""
    alone = getattr(stage.part("kernels.c_kernel"), "ALONE", ())
    names = [
        "paged_attention",
        *(f"{name}_alone" for name in alone),
        *(["forward", "has_kind", "sampler_bytes"] if alone else []),
    ]
    path.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names))
    stage.part("compiler").SOURCES = [path]


@pytest.fixture
def compiler(stage, tmp_path, monkeypatch):
    """The module that compiles, with a cache directory of its own and little to compile."""
    kernel, module = stage.part("kernels.c_kernel"), stage.part("compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "SOURCES", module.SOURCES)  # so that they are put back
    use_a_small_source(stage, tmp_path / "kernel.c")
    kernel.load_kernel.cache_clear()
    yield module
    kernel.load_kernel.cache_clear()


def load(stage):
    stage.part("kernels.c_kernel").load_kernel()


def complete(stage, *arguments, **environment):
    return stage.run("--prompts", "Once upon a time", "--max-tokens", 4, "--temperature", 0, *arguments, **environment)


def write_compiler(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
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

    monkeypatch.setattr(compiler.os, "access", lambda path, mode: not mode & os.W_OK)
    monkeypatch.setattr(compiler.Path, "replace", read_only)
    assert compiler.compile_kernel() == library


def test_a_library_that_can_not_be_loaded(stage, tmp_path, monkeypatch):
    """It compiles, but every time to something that is not a library: "auto" goes on without it, with one log line."""
    kernel = stage.part("kernels.c_kernel")

    def compile_kernel():
        (tmp_path / "bad.so").write_bytes(b"bad")
        return tmp_path / "bad.so"

    monkeypatch.setattr(kernel, "compile_kernel", compile_kernel)
    kernel.load_kernel.cache_clear()
    try:
        assert stage.part("attention").pick_backend("auto", CPU, 64)[0] == "torch"
        with pytest.raises(ValueError, match="the compiled C kernel can't be loaded"):
            stage.part("attention").pick_backend("c", CPU, 64)
    finally:
        kernel.load_kernel.cache_clear()


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

posix = pytest.mark.skipif(os.name == "nt", reason="modes and owners of files")


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


@pytest.mark.soak
def test_without_a_cache_directory(stage, tmp_path):
    (tmp_path / "home").write_text("")  # a file, where a directory would have to be made
    environment = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": "", "TMPDIR": str(tmp_path)}
    status, _, stderr = complete(stage, "--attention-backend", "c", "--quiet", **environment)
    assert (status, stderr) == (0, "")
    assert [name for name in os.listdir(tmp_path) if name.startswith("stagewise")] == []  # it is gone again


def test_where_the_cache_is(compiler, tmp_path, monkeypatch):
    """By its specification, a relative XDG_CACHE_HOME counts as unset; without a HOME, `~` is not a directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for relative in ("", "cache", "./cache", "~/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert compiler.cache_directory() == tmp_path / "home" / ".cache" / "stagewise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "home")
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
    assert stage.part("attention").pick_backend("auto", CPU, 64)[0] == "torch"
    assert "can't be loaded: [Errno 2] No usable temporary directory found" in caplog.text


# --- The compiler -----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("stage", OWN[:1], ids=str)
def test_a_compiler_that_fails(stage, tmp_path):
    program = write_compiler(tmp_path / "broken-cc", "echo 'out of ink' >&2\nexit 1")
    status, _, stderr = complete(stage, "--quiet", CC=program, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert status == 0
    assert stderr == f"attention_backend is torch, the slow one: the C compiler {program} fails: out of ink\n"


def test_what_a_compiler_may_do(stage, compiler, tmp_path, monkeypatch, caplog):
    program, cc = tmp_path / "cc of mine", f"the C compiler {tmp_path / 'cc of mine'}"
    for script, says in (
        ("printf '\\377 error: caf\\351\\n' >&2; exit 1", f"{cc} fails: \ufffd error: caf\ufffd"),
        ("[ $1 = --version ] || { echo note >&2; echo 'x.c: error: no' >&2; exit 3; }", f"{cc} fails: x.c: error: no"),
        ("[ $1 = --version ] || exit 7", f"{cc} fails: no message (status 7)"),
        ("kill -9 $$", f"{cc} fails: no message (status -9)"),
        ("printf 'caf\\351 \\377\\n'", "No such file or directory"),  # it makes nothing, and its name is no UTF-8
        (b"\x7fELF, but no more", f"{cc} does not run: Exec format error"),
    ):
        write_compiler(program, "" if isinstance(script, bytes) else script)
        if isinstance(script, bytes):
            program.write_bytes(script)
        monkeypatch.setenv("CC", shlex.quote(str(program)))
        said = fails(stage, caplog)
        assert said == says or (says in said and not says.startswith(cc))
    for chosen, says in (
        ("no-such-cc", "CC is 'no-such-cc', but there is no program 'no-such-cc'"),
        ("no-such-cc -m64", "CC is 'no-such-cc -m64', but there is no program 'no-such-cc'"),
        ("gcc 'x", 'CC is "gcc \'x", which is not a command: No closing quotation'),
    ):
        monkeypatch.setenv("CC", chosen)
        assert fails(stage, caplog) == says


@pytest.mark.parametrize("script", ["exec sleep 90", "sleep 90 & exit 0"])
def test_a_compiler_that_hangs(compiler, tmp_path, script):
    """Itself, or what it has started and left behind."""
    program, started = write_compiler(tmp_path / "cc", script), time.monotonic()
    with pytest.raises(RuntimeError, match=r"cc did not finish within 2 seconds"):
        compiler.run([program, "--version"], seconds=2)
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
