"""`pytest --engine DIRECTORY --as-stage N`: tests run on the engine in a directory, in the place of a stage. It is
imported under that stage's name, so whatever names the stage, its package or its modules gets the engine's."""

import inspect
from dataclasses import make_dataclass
from pathlib import Path

import pytest

from stagewise.stages import PACKAGES
from tests.adapter import STAGES, TINYTALES, Stage
from tools.engines import load_package, said_at


class OwnEngine:
    """A plugin: tests of other stages are deselected, and the rest run in the order in which they are named."""

    def __init__(self, directory: Path, number: int):
        self.stage = STAGES[number - 1]
        try:
            package = load_package(directory, PACKAGES[number])
        except Exception as error:
            raise pytest.UsageError(f"{directory} can't be imported: {said_at(error)}") from error
        if not hasattr(package, "EngineConfig"):  # it is not built like a stage: what its LLM takes
            package.EngineConfig = make_dataclass("EngineConfig", inspect.signature(package.LLM).parameters)
        if weights := self.stage._part("weights"):
            weights.BUNDLED = TINYTALES  # it looks for the models next to the directory

    def is_of(self, item: pytest.Item) -> bool:
        """Whether a test is of this stage, or of none."""
        params = item.callspec.params.values() if hasattr(item, "callspec") else ()
        stages = [one for one in [*params, getattr(item.module, "stage", None)] if isinstance(one, Stage)]
        return not stages or self.stage in stages

    @pytest.hookimpl(trylast=True)  # after pytest has sorted them by their fixtures
    def pytest_collection_modifyitems(self, config, items):
        places = {name: place for place, name in enumerate(config.args)}
        config.hook.pytest_deselected(items=[item for item in items if not self.is_of(item)])
        items[:] = sorted(filter(self.is_of, items), key=lambda item: places.get(item.nodeid.partition("[")[0], -1))
