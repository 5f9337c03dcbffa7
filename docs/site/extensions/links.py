"""Links that are right on GitHub are right on the site.

Sphinx and MyST care for links between Markdown files. Here, a link to a source file or a folder leads to the page that
shows it (extensions/sources.py makes those pages); a linked trace (docs/examples/traces) is a replay, made when the
site is built, and shown in the chapter below the paragraph that links to it. Pictures from the network become their
words: reading fetches nothing.
"""

import functools
import re
import shutil
from html import escape, unescape
from pathlib import Path
from posixpath import dirname, join, normpath

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util.osutil import relative_uri
from sync_stages import ROOT

from tools import replay_examples

PICTURES = {".png", ".svg", ".jpg", ".gif", ".webp"}
COPIED = PICTURES  # what a browser shows by itself
make_replay = functools.cache(replay_examples.make)
MOST_BYTES = 200_000
EMBEDDED = """<figure class="embedded"><figcaption><a href="{address}">{title} ↗</a>, as a page of its own</figcaption>
<iframe src="{address}" title="{title}" loading="lazy"></iframe></figure>"""


def is_trace(path: str) -> bool:
    """Whether a file of the repository is the trace of an example."""
    return (ROOT / path).parent == replay_examples.FOLDER and path.endswith(".jsonl")


def can_be_shown(path: Path) -> bool:
    """A file that a page can show with colours and line numbers: text, and not a whole vocabulary."""
    if path.stat().st_size > MOST_BYTES:
        return False
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


class Links:
    """The addresses of files and folders, as seen from one page, and a record of what has to be there."""

    def __init__(self, env: BuildEnvironment):
        self.env, self.docname = env, env.docname
        self.shown: set[str] = env.shown_files.setdefault(env.docname, set())
        self.copied: set[str] = env.copied_files.setdefault(env.docname, set())

    def inside(self, target: str) -> str | None:
        """A relative target as a path from the root; None unless it is in the repository."""
        path = normpath(join(dirname(self.docname), target))
        return None if path.startswith("..") or not (ROOT / path).exists() else path

    def address(self, target: str) -> str | None:
        """The relative address of the page for a file or folder; None if there can't be one."""
        path = self.inside(target)
        if path is None:
            return None
        page = self._page(path)
        return page and relative_uri(f"{self.docname}.html", page)

    def _page(self, path: str) -> str | None:
        docs = self.env.found_docs
        if docname := next((doc for doc in (join(path, "README"), self.env.path2doc(path)) if doc in docs), None):
            return f"{docname}.html"
        if (ROOT / path).is_dir():
            self.shown.add(path)
            return join(path, "index.html")
        self.env.note_dependency(str(ROOT / path))
        if is_trace(path):
            self.copied.add(path.removesuffix("jsonl") + "html")
            return path.removesuffix("jsonl") + "html"
        if Path(path).suffix in COPIED:
            self.copied.add(path)
            return path
        if not can_be_shown(ROOT / path):
            return None
        self.shown.add(path)
        return f"{path}.html"


class FileLinks(SphinxTransform):
    """Links to files and folders, in Markdown and in its HTML."""

    default_priority = 400

    def apply(self, **_) -> None:
        links = Links(self.env)
        for node in self.document.findall(lambda node: isinstance(node, nodes.raw) and node["format"] == "html"):
            self._rewrite(node, links)
        for node in list(self.document.findall(addnodes.download_reference)):
            self._replace(node, node["reftarget"], links)
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node.get("reftype") == "myst" and node.get("refdomain") is None:
                self._replace(node, node["reftarget"], links)

    def _replace(self, node: nodes.Element, target: str, links: Links) -> None:
        if address := links.address(target):
            reference = nodes.reference("", "", *node.children, refuri=address, internal=True)
            node.replace_self(reference)
            if is_trace(path := str(links.inside(target))):
                embed(reference, address, title_of(Path(path).stem))

    def _rewrite(self, node: nodes.raw, links: Links) -> None:
        def rewritten(match: re.Match) -> str:
            address = links.address(match[2])
            return f'{match[1]}="{escape(address)}{match[3]}"' if address else match[0]

        text = re.sub(r'\b(href|src|srcset)="([^":#?]+)(#?[^"]*)"', rewritten, node.astext())
        node.clear()
        node += nodes.Text(text)


def title_of(name: str) -> str:
    """What an example says that it shows."""
    return unescape(re.search(r"<title>stagewise: (.*?)</title>", make_replay(name))[1])


def embed(reference: nodes.reference, address: str, title: str) -> None:
    """Show a linked page below the paragraph that links to it; of a table's pages the first."""
    block: nodes.Node = reference
    while not isinstance(block.parent, nodes.section | nodes.list_item | nodes.block_quote | nodes.document):
        block = block.parent
    if isinstance(block, nodes.table) and block.get("embeds"):
        return
    block["embeds"] = True
    html = EMBEDDED.format(address=escape(address), title=escape(title))
    place = block.parent.index(block) + 1
    while place < len(block.parent) and "embedded" in block.parent[place].get("classes", []):
        place += 1
    block.parent.insert(place, nodes.raw("", html, format="html", classes=["embedded"]))


def is_linked(node: nodes.Node | None) -> bool:
    """Whether a node is within a link, or in a heading, which the sidebar links to."""
    while node is not None and not isinstance(node, nodes.reference | addnodes.pending_xref | nodes.title):
        node = node.parent
    return node is not None


class FileNames(SphinxTransform):
    """Code in the text that names a file next to the page, such as `scheduler.py`, links to it too."""

    default_priority = 420

    def apply(self, **_) -> None:
        links = Links(self.env)
        for node in list(self.document.findall(nodes.literal)):
            name = node.astext()
            if is_linked(node) or not re.fullmatch(r"[\w/]+\.[a-z]+", name):
                continue
            if address := links.address(name):
                node.replace_self(nodes.reference("", "", node.deepcopy(), refuri=address, internal=True))


class NoPicturesFromTheNetwork(SphinxTransform):
    default_priority = 400

    def apply(self, **_) -> None:
        for node in list(self.document.findall(nodes.image)):
            if re.match(r"https?:", node["uri"]):
                node.replace_self(nodes.Text(node.get("alt") or node["uri"]))


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    for files in (env.shown_files, env.copied_files):
        files.pop(docname, None)


def start(app: Sphinx) -> None:
    for name in ("shown_files", "copied_files"):  # page -> paths from the root
        if not hasattr(app.env, name):
            setattr(app.env, name, {})


def copy_files(app: Sphinx, exception: Exception | None) -> None:
    for path in sorted(set().union(*app.env.copied_files.values())) if exception is None else []:
        target = app.outdir / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".html"):
            target.write_text(make_replay(Path(path).stem), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / path, target)


def setup(app: Sphinx) -> dict:
    app.add_transform(FileLinks)
    app.add_transform(FileNames)
    app.add_transform(NoPicturesFromTheNetwork)
    app.connect("builder-inited", start)
    app.connect("env-purge-doc", forget)
    app.connect("build-finished", copy_files)
    return {"parallel_read_safe": False}
