"""How Sphinx makes the site: from the Markdown files and notebooks of the repository, as they stand.

The source folder is the repository itself, so a page's address is its file's: stage03_kvcache/README.md becomes
stage03_kvcache/README.html, and a link between two files is a link between two pages. A new Markdown file needs no line
here; extensions/contents.py finds its place. `make site` builds. Nothing is executed, and neither the build nor the
reader's browser fetches anything.
"""

import hashlib
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(HERE)]

from extensions.api import source_address as linkcode_resolve  # noqa: F401  Sphinx looks for it here
from notebook_heads import repository, site_address
from sync_stages import tomllib

from tools import card

project = "stagewise"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
html_title = f"stagewise {version}"
copyright = "the authors of stagewise, MIT license"
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
    "extensions.api",
    "extensions.contents",
    "extensions.links",
    "extensions.publish",
    "extensions.sources",
    "extensions.differences",
    "extensions.walks",
]
own = [path for path in sorted(HERE.glob("*/*.*")) if path.parent.name in ("extensions", "static", "templates")]
# Where the site is published: derived from the repository's address in pyproject.toml, unless the environment says it.
html_baseurl = os.environ.get("SITE_ADDRESS") or (site_address(repository()) if repository() else "")
if html_baseurl:  # how links to a page look elsewhere, a page for addresses that lead nowhere, the list of all pages
    extensions += ["sphinxext.opengraph", "notfound.extension", "sphinx_sitemap"]
    ogp_site_url = html_baseurl
    ogp_image, ogp_image_alt = "_static/race.png", card.ALT
    ogp_social_cards = {"enable": False}
    ogp_custom_meta_tags = ['<meta name="twitter:card" content="summary_large_image">']
    notfound_urls_prefix = urlsplit(html_baseurl).path
    sitemap_url_scheme, sitemap_excludes = "{link}", ["404.html", "search.html"]
# Where this changes, all pages are made again.
site_code = hashlib.sha256(b"".join([html_baseurl.encode(), version.encode(), *(path.read_bytes() for path in own)]))
site_code = site_code.hexdigest()
root_doc = "README"
include_patterns = [
    "*.md",
    "**/*.md",
    ".github/SECURITY.md",
    ".github/CONTRIBUTING.md",
    "notebooks/*.ipynb",
    "docs/site/*.rst",
]
exclude_patterns = [".[!g]*", ".git/**", ".github/*TEMPLATE*", "**/.[!g]*", "**/_build", "build", "mine"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!stage05_paged\.(LLM|AsyncLLM|\w+(Output|Params|Event|Error))).*")]

# Markdown as GitHub reads it; notebooks with the outputs that are stored in them.
myst_heading_anchors = 6
nb_execution_mode = "off"
nb_merge_streams = True
highlight_language = "text"

# Docstrings are in Google's style, with code in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_theme_options = {
    "light_css_variables": {"color-code-background": "#f6f8fa"},
    "dark_css_variables": {"color-code-background": "#22272e"},
}
if address := repository():  # a link to the repository above each page, and to the page's own source
    html_theme_options |= {"source_repository": f"{address}/", "source_branch": "main", "source_directory": ""}
html_static_path = ["static"]
templates_path = ["templates"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_favicon = "static/favicon.svg"
html_show_sphinx = False
html_copy_source = False
html_domain_indices = False
html_use_index = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
