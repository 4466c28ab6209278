"""The command-line parser: for an unusable option it prints one line with the reason, and a hint."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from tidegate.errors import ConfigError

__all__ = [
    "EXIT_ERROR",
    "ArgumentParser",
    "confirmed",
    "number",
    "print_error",
    "printable",
    "whole_number",
]

EXIT_ERROR = 2  # what argparse itself uses

_HINT = re.compile(r"(?P<problem>.*) \(hint: (?P<hint>.*)\)", re.DOTALL)
_NO_CHOICE = re.compile(
    r"(?P<problem>.*invalid choice: (?P<given>.*)) \(choose from (?P<choices>.*)\)", re.DOTALL
)
_REQUIRED = "the following arguments are required"
_OPTION = re.compile(r"--[a-z][a-z-]*")


class ArgumentParser(argparse.ArgumentParser):
    """A parser that suggests the option or command that was probably meant, without printing the usage before it."""

    _commands: Any = None
    _given: Sequence[str] = ()

    def add_subparsers(self, **options: Any) -> Any:
        """Add commands, whose parsers are of this class, too."""
        self._commands = super().add_subparsers(**options)
        return self._commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Store the arguments, because one of them may be a misspelt form of a missing required one."""
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(self._given, namespace)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse the arguments. If they cannot be used, end the process with code 2."""
        found, others = self.parse_known_args(args, namespace)
        if others:
            parser = self
            while parser._commands is not None and getattr(found, parser._commands.dest) is not None:
                parser = parser._commands.choices[getattr(found, parser._commands.dest)]
            parser.refuse(others[0])
        return found

    def refuse(self, argument: str) -> NoReturn:
        """End the process with an error for an unknown argument, and suggest a known one."""
        import difflib

        hint = self._help_hint()
        words = [option[2:] for option in _OPTION.findall(self.format_usage())]
        word = argument.partition("=")[0].lstrip("-")
        if argument.startswith("-") and (near := difflib.get_close_matches(word[:100], words, n=1)):
            hint = f"did you mean '--{near[0]}'?"
        print_error(f"unrecognized argument {argument!r}", hint)
        raise SystemExit(EXIT_ERROR)

    def error(self, message: str) -> NoReturn:
        """Print the error in the form of all others, and end the process."""
        if message.startswith(_REQUIRED):
            self._refuse_misspelt()
        problem, hint = message, self._help_hint()
        if found := _HINT.fullmatch(message):
            problem, hint = found["problem"], found["hint"]
        elif found := _NO_CHOICE.fullmatch(message):
            from tidegate.config.values import did_you_mean

            choices = [choice.strip("'") for choice in found["choices"].split(", ")]
            problem, hint = found["problem"], did_you_mean(found["given"].strip("'"), choices)
        print_error(problem, hint)
        raise SystemExit(EXIT_ERROR)

    def _refuse_misspelt(self) -> None:
        """End the process with an error for the first unknown option before `--`, if there is one."""
        for argument in self._given:
            if argument == "--":
                return
            word = argument.partition("=")[0]
            if word.startswith("--") and not any(
                known.startswith(word) for known in self._option_string_actions
            ):
                self.refuse(argument)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or version; unlike argparse's own, raise the error if it cannot be written."""
        (file or sys.stderr).write(message)

    def _help_hint(self) -> str:
        return f"see `{self.prog} --help`"


def whole_number(least: int, most: int, *, noun: str = "a whole number") -> Callable[[str], int]:
    """Return the type of an option: whole numbers from `least` to `most`. It raises `argparse.ArgumentTypeError`."""

    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) <= len(str(most)) and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"expected {noun} from {least} to {most}, got {text!r}")

    return read


def number(least: float, most: float, *, noun: str = "a number") -> Callable[[str], float]:
    """Return the type of an option: numbers from `least` to `most`. It raises `argparse.ArgumentTypeError`."""

    def read(text: str) -> float:
        with suppress(ValueError):
            found = float(text)
            if least <= found <= most:
                return found
        raise argparse.ArgumentTypeError(f"expected {noun} from {least:g} to {most:g}, got {text!r}")

    return read


def confirmed(question: str) -> bool:
    """Ask on the terminal, and return the answer. Raises `ConfigError` where there is no terminal to ask on."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError("cannot ask for confirmation: stdin is not a terminal", hint="add --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_error(message: str, hint: str | None) -> None:
    """Print an error and its hint on stderr; no name in them can write to the terminal."""
    print(f"error: {_harmless(message)}", file=sys.stderr)
    if hint is not None:
        print(f"hint: {_harmless(hint)}", file=sys.stderr)


def printable(text: str) -> str:
    r"""Return a text that cannot write to the terminal.

    >>> print(printable("a\nb\x1b[2J"))
    a\nb\x1b[2J
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


def _harmless(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
