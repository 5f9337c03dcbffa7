"""Finding stop texts in a text that grows piece by piece.

Each stop text keeps one number: how many of its characters the text ends with. A new character makes it one more, or
falls back to the next shorter beginning of the stop text that the text also ends with; so each character is looked at
about once, however long the stop texts are and however they overlap.

Source: Knuth, Morris and Pratt 1977, "Fast Pattern Matching in Strings".
"""

import functools


@functools.lru_cache(maxsize=1024)
def borders(stop: str) -> tuple[int, ...]:
    """For each beginning of a text, the length of the longest shorter beginning that it ends with."""
    table = [0]
    for c in stop[1:]:
        length = table[-1]
        while length and stop[length] != c:
            length = table[length - 1]
        table.append(length + (stop[length] == c))
    return tuple(table)


def match(stop: str, matched: int, new_text: str) -> tuple[int, int | None]:
    """Follow a stop text into new text.

    Args:
        matched: how many of its characters the text before ends with, fewer than all.

    Returns:
        how many it ends with now, and how many characters of the new text there are up to the end of the stop text
        when it is there for the first time; or None if it is not.
    """
    if not matched and stop[0] not in new_text:
        return 0, None
    table, first = borders(stop), None
    for i, c in enumerate(new_text, start=1):
        while matched and stop[matched] != c:
            matched = table[matched - 1]
        matched += stop[matched] == c
        if matched == len(stop):
            first = first or i
            matched = table[-1]
    return matched, first
