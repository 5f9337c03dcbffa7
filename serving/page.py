"""The page at /: the parts of replay's page, with a playground above, and the running engine instead of a trace."""

from pathlib import Path

from replay.page import read

PARTS = Path(__file__).parent / "page"
