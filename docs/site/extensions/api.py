"""What the docstrings can't say by themselves: which stage has which name, and the options that EngineConfig lists."""

import dataclasses
import importlib
import inspect
from pathlib import Path
from types import ModuleType

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.domains.python._object import PyObject
from sphinx.util.docutils import SphinxDirective
from sync_stages import ROOT, read_stages


def stages() -> dict[int, ModuleType]:
    """The packages of all stages, by number."""
    return {number: importlib.import_module(name) for number, name in enumerate(read_stages(), 1)}


def public(owner: type) -> list[str]:
    return [name for name in vars(owner) if not name.startswith("_")]


def table(header: list[str], rows: list[list[str]], widths: str) -> list[str]:
    """A table in reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in [header, *rows]:
        lines += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(row)]
    return lines


class GeneratedTable(SphinxDirective):
    """A directive whose content is a table made from the stages."""

    def lines(self) -> list[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        for stage in read_stages():
            for name in ("__init__.py", "llm.py", "config.py"):
                self.env.note_dependency(str(ROOT / stage / name))
        node = nodes.Element()
        self.state.nested_parse(StringList(self.lines(), source=__file__), self.content_offset, node)
        return node.children


class Names(GeneratedTable):
    """The public names, and the methods of LLM, with the stages that have them."""

    def lines(self) -> list[str]:
        found: dict[str, set[int]] = {}
        for number, stage in stages().items():
            for name in [*stage.__all__, *(f"LLM.{name}" for name in public(stage.LLM))]:
                found.setdefault(name, set()).add(number)
        rows = [
            [f"`{name}`", *("✓" if number in numbers else "" for number in stages())]
            for name, numbers in sorted(found.items(), key=lambda pair: (min(pair[1]), pair[0]))
        ]
        return table(["name", *(f"stage {number}" for number in stages())], rows, "4" + " 1" * len(stages()))


class Options(GeneratedTable):
    """The options of `LLM`, with their defaults, and the stages that take them."""

    def lines(self) -> list[str]:
        found: dict[str, tuple[dataclasses.Field, list[int]]] = {}
        for number, stage in stages().items():
            config = importlib.import_module(f"{stage.__name__}.config").EngineConfig
            for field in dataclasses.fields(config):
                found[field.name] = (field, [*found.get(field.name, (None, []))[1], number])
        rows = [
            [f"`{name}`", f"`{field.default!r}`", field.metadata.get("help", ""), f"{min(numbers)}–{max(numbers)}"]
            for name, (field, numbers) in found.items()
        ]
        return table(["option", "default", "meaning", "stages"], rows, "3 2 7 1")


def source_address(domain: str, info: dict) -> str | None:
    """Where [source] leads: the page of the file, at the object's line."""
    if domain != "py" or not info["module"].startswith("stage"):
        return None
    thing: object = importlib.import_module(info["module"])
    for name in info["fullname"].split("."):
        thing = inspect.getattr_static(thing, name, None)
    thing = getattr(thing, "fget", thing)  # a property's code is its getter's
    try:
        path, line = inspect.getsourcefile(thing), inspect.getsourcelines(thing)[1]
    except TypeError:  # a plain attribute
        return None
    return f"../../{Path(path).resolve().relative_to(ROOT).as_posix()}.html#L-{line}"


def show_examples(app: Sphinx, what: str, name: str, obj: object, options: dict, lines: list[str]) -> None:
    """An indented example below a paragraph is code; reStructuredText would take it for a quotation."""
    for i in range(len(lines) - 1, 0, -1):
        if lines[i].startswith("    ") and not lines[i - 1].strip() and i > 1 and not lines[i - 2].startswith(" "):
            lines[i:i] = [".. code-block:: python", ""]


def setup(app: Sphinx) -> dict:
    for kind in PyObject.doc_field_types:
        if kind.name == "variable":
            kind.label = "Attributes"  # as the docstrings call them
    app.add_directive("stage-names", Names)
    app.add_directive("stage-options", Options)
    app.connect("autodoc-process-docstring", show_examples, priority=400)  # before napoleon
    return {"parallel_read_safe": True}
