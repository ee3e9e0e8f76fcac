"""The YAML of Marian's models and configurations, as its own program writes it.

Such a file is a list of keys with a value, or with a list of values: that part of YAML is read, without
another package. Values are the words that stand there.
"""

from __future__ import annotations

from typing import TypeAlias

Options: TypeAlias = dict[str, str | list[str]]


def read_options(text: str) -> Options:
    """The keys of a file with their values; what is nested deeper than a list is left out."""
    found: Options = {}
    key = ""
    for line in text.splitlines():
        bare = line.strip()
        if not bare or bare.startswith(("#", "---")):
            continue
        if bare.startswith("- ") or bare == "-":
            values = found.get(key)
            if isinstance(values, list):
                values.append(_plain(bare[1:]))
        elif line[:1].isspace():
            key = ""  # what is nested belongs to no key that is read
        else:
            key, colon, value = line.partition(":")
            key = _plain(key)
            if not colon:
                key = ""
            elif not value.strip():
                found[key] = []
            elif value.strip().startswith("["):
                items = value.strip()[1:].rstrip().removesuffix("]")
                found[key] = [_plain(item) for item in items.split(",") if item.strip()]
            else:
                found[key] = _plain(value)
    return found


def _plain(value: str) -> str:
    """A value without quotes and without the comment behind it."""
    value = value.strip()
    quote = value[:1]
    if quote and quote in "\"'":
        return value[1:].partition(quote)[0]
    value = value.partition(" #")[0].strip()
    return "" if value in ("~", "null") else value
