# For pyright: to read the library itself takes it half a minute.
from typing import Any

def __getattr__(name: str) -> Any: ...
