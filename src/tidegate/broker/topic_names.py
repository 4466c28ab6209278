"""Which names a topic may have. Follows: Kafka `Topic.validate`."""

import re

__all__ = ["MAX_NAME_LENGTH", "name_problem"]

MAX_NAME_LENGTH = 249  # so that `<name>-<partition>` stays a file name
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str | None) -> str | None:
    """Return what Kafka says is wrong with a topic's name, None where nothing is.

    >>> name_problem("..")
    "'..' is not allowed"
    """
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    if _LEGAL.fullmatch(name) is None:
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None
