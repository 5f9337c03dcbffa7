"""The stages that can serve: those that have an `AsyncLLM`. A stage knows nothing of this package."""

import importlib
from types import ModuleType
from typing import Any

PACKAGES = {4: "stage04_continuous", 5: "stage05_paged", 6: "stage06_fast"}
NEWEST = max(PACKAGES)


class Stage:
    """A stage by its number: its classes, and its modules by name."""

    def __init__(self, number: int):
        if number not in PACKAGES:
            raise ValueError(f"stage must be one of {', '.join(map(str, PACKAGES))}, got {number}")
        self.number = number

    def part(self, name: str) -> ModuleType:
        """A module of the stage, such as "config"."""
        return importlib.import_module(f"{PACKAGES[self.number]}.{name}")

    def __getattr__(self, name: str) -> Any:
        """What the stage exports: AsyncLLM, QueueFullError, SamplingParams."""
        return getattr(importlib.import_module(PACKAGES[self.number]), name)
