"""What an administrator was told is in force, and what it may have changed since."""

from collections.abc import Hashable, Mapping
from typing import Any

from tests.kills.ledger import ViolationError

__all__ = ["Intended"]

_SHOWN = 5


class Intended:
    """A state of names and values that is altered step by step. A value of None: the name has gone.

    what: how it is called where something is wrong with it.

    >>> quotas = Intended("quotas")
    >>> quotas.begin({"a": 1, "b": 2}); quotas.acknowledge()
    >>> quotas.begin({"a": None, "c": 3})
    >>> quotas.settle({"b": 2, "c": 3})
    True
    >>> quotas.begin({"b": 4, "d": 5})
    >>> quotas.settle({"b": 4, "c": 3})
    Traceback (most recent call last):
    tests.simulation.auditor.ViolationError: quotas are not as acknowledged: 'b' is 4 instead of 2
    and not as with the unacknowledged alteration: 'd' is None instead of 5
    """

    def __init__(self, what: str) -> None:
        self.state: dict[Hashable, Any] = {}
        self.acknowledged = 0
        self._what = what
        self._pending: Mapping[Hashable, Any] | None = None

    def begin(self, changes: Mapping[Hashable, Any]) -> None:
        """Say what is about to be asked for."""
        self._pending = changes

    def acknowledge(self) -> None:
        """Say that it was answered: it is in force."""
        self.state = self._altered()
        self._pending = None
        self.acknowledged += 1

    def refuse(self) -> None:
        """Say that it was refused: nothing has changed."""
        self._pending = None

    def settle(self, found: Mapping[Hashable, Any]) -> bool:
        """Compare with what is there; return whether what was not acknowledged is in force. Raises `ViolationError`."""
        if found == self.state:
            self._pending = None
            return False
        altered = self._altered()
        if found == altered:
            self.state, self._pending = altered, None
            return True
        problem = f"{self._what} are not as acknowledged: {_difference(self.state, found)}"
        if self._pending is not None:
            problem += f"\nand not as with the unacknowledged alteration: {_difference(altered, found)}"
        raise ViolationError(problem)

    def _altered(self) -> dict[Hashable, Any]:
        merged = {**self.state, **(self._pending or {})}
        return {name: value for name, value in merged.items() if value is not None}


def _difference(wanted: Mapping[Hashable, Any], found: Mapping[Hashable, Any]) -> str:
    names = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    shown = ", ".join(
        f"{name!r} is {found.get(name)!r} instead of {wanted.get(name)!r}" for name in names[:_SHOWN]
    )
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
