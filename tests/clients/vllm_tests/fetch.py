"""Fetch vLLM's tests: an sdist by name, version and hash, from the index that pip is set up for.

`pip download` would first build the package, for its metadata. So this asks pip's own parts, of the version that the
environment `vllm-tests` pins, in that environment.
"""

import hashlib
import sys
import tarfile
import tempfile
from pathlib import Path

from pip._internal.commands.download import DownloadCommand
from pip._internal.network.download import Downloader
from pip._vendor.packaging.specifiers import SpecifierSet


def download(name: str, version: str, sha256: str, folder: Path) -> Path:
    """The sdist, in a folder. Raises ValueError if there is none, or one of another hash."""
    command = DownloadCommand("download", "")
    with command.main_context():
        options, _ = command.parse_args(["--no-binary", name, name])
        finder = command._build_package_finder(options, session := command.get_default_session(options))
        best = finder.find_best_candidate(name, SpecifierSet(f"=={version}")).best_candidate
        if best is None:
            raise ValueError(f"the package index has no sdist of {name} {version}")
        path = Path(Downloader(session, "off")(best.link, str(folder))[0])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != sha256:
        raise ValueError(f"{path.name} has the SHA-256 {digest}, not {sha256}")
    return path


def main(name: str, version: str, sha256: str, target: Path) -> None:
    """Put the tests of vLLM's entrypoints below `target`."""
    prefix = f"{name}-{version}/tests/"
    wanted = (prefix + "__init__.py", prefix + "entrypoints/")
    with tempfile.TemporaryDirectory() as folder:
        path = download(name, version, sha256, Path(folder))
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and member.name.startswith(wanted) and ".." not in Path(member.name).parts:
                    content = archive.extractfile(member)
                    assert content is not None
                    file = target / "tests" / member.name.removeprefix(prefix)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content.read())


if __name__ == "__main__":
    name, version, sha256, target = sys.argv[1:]
    main(name, version, sha256, Path(target))
