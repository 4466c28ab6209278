"""The loop that most players share: a method per op, its keyword arguments from the file."""

from collections.abc import Iterator

__all__ = ["play_steps"]


def play_steps(player: object, scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Call `player.<op>(**args)` step by step and yield `(index, expected, what the method returned)`.

    A method that returns None stands for an op without a result, written `{}` in the files.
    """
    for index, step in enumerate(scenario["steps"]):
        method = getattr(player, step["op"], None)
        if method is None:
            raise ValueError(f"{type(player).__name__} has no op {step['op']!r}")
        got = method(**step["args"])
        yield index, step["expect"], {} if got is None else got
