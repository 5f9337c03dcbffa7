"""Fetch vLLM's tests: an sdist by name, version and hash, from the index that pip is set up for.

`pip download` would first build the package, for its metadata. So this asks pip's own parts, of the version that the
environment `vllm-tests` pins; run it with that environment's Python.
"""

import hashlib
import sys
import tarfile
import tempfile
from pathlib import Path

from pip._internal.commands.download import DownloadCommand  # pyright: ignore[reportMissingImports]
from pip._internal.network.download import Downloader  # pyright: ignore[reportMissingImports]
from pip._vendor.packaging.specifiers import SpecifierSet  # pyright: ignore[reportMissingImports]

NAME, VERSION = "vllm", "0.32.0"
SHA256 = "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad"


def download(folder: Path) -> Path:
    """The sdist, in a folder. Raises ValueError if its bytes are others than those that were read when it was pinned."""
    command = DownloadCommand("download", "")
    with command.main_context():
        options, _ = command.parse_args(["--no-binary", NAME, NAME])
        session = command.get_default_session(options)
        found = command._build_package_finder(options, session).find_best_candidate(NAME, SpecifierSet(f"=={VERSION}"))
        if found.best_candidate is None:
            raise ValueError(f"the package index has no sdist of {NAME} {VERSION}")
        path = Path(Downloader(session, "off")(found.best_candidate.link, str(folder))[0])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        raise ValueError(f"{path.name} has the SHA-256 {digest}, not {SHA256}")
    return path


def main(target: Path) -> None:
    """Put the tests of the entrypoints below `target`."""
    prefix = f"{NAME}-{VERSION}/tests/"
    wanted = tuple(prefix + part for part in ("__init__.py", "entrypoints/"))
    with tempfile.TemporaryDirectory() as folder, tarfile.open(download(Path(folder))) as archive:
        for member in archive:
            if member.isfile() and member.name.startswith(wanted) and ".." not in member.name:
                path = target / "tests" / member.name.removeprefix(prefix)
                path.parent.mkdir(parents=True, exist_ok=True)
                content = archive.extractfile(member)
                assert content is not None
                path.write_bytes(content.read())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
