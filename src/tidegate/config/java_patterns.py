r"""Regular expressions of `java.util.regex`, as Python's.

>>> java_pattern(r"CN=(?<who>[a-z&&[^b]]+)").fullmatch("CN=alice")["who"]
'alice'
>>> java_pattern("(?u)x")
Traceback (most recent call last):
    ...
tidegate.config.java_patterns.JavaPatternError: flags 'u' at 2 are not known, expected some of i and s

Where the two read the same text differently, Java's reading is written out: `.` and `$` know Java's line ends, flags
hold from where they stand, classes have unions and intersections, `\w`, `\d`, `\s` and the flag `i` are ASCII.
What is left is refused: the flags d, m, u, x and U, `\G`, `\X`, `\N`, Unicode properties, a look-behind of no fixed
width. Follows: `java.util.regex.Pattern` of JDK 17.
"""

import re

__all__ = ["JavaPatternError", "java_pattern"]

_LINE_ENDS = "\\n\\r\\x85\\u2028\\u2029"
_DOT = f"[^{_LINE_ENDS}]"
_ANYTHING = "[\\s\\S]"
_END = "(?:(?=(?:\\r\\n|(?<!\\r)\\n|[\\r\\x85\\u2028\\u2029])?\\Z))"
_NEVER = "(?!)"
_HORIZONTAL = "\\x20\\t\\xa0\\u1680\\u180e\\u2000-\\u200a\\u202f\\u205f\\u3000"
_VERTICAL = "\\n\\x0b\\f\\r\\x85\\u2028\\u2029"
_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_SETS = {"d": "\\d", "w": "\\w", "s": "\\s", "h": _HORIZONTAL, "v": _VERTICAL}
_OTHERS = {
    "D": "[^0-9]",
    "W": "[^a-zA-Z0-9_]",
    "S": "[^\\s]",
    "H": f"[^{_HORIZONTAL}]",
    "V": f"[^{_VERTICAL}]",
}
_POSIX = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": "\\x00-\\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": "!-/:-@\\[-`{-~",
    "Graph": "!-~",
    "Print": "\\x20-~",
    "Blank": "\\x20\\t",
    "Cntrl": "\\x00-\\x1f\\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": "\\x20\\t\\n\\x0b\\f\\r",
}
_ANCHORS = {"b": "\\b", "B": "\\B", "A": "(?:\\A)", "z": "(?:\\Z)", "Z": _END}
_QUANTIFIER = re.compile(r"(?:[*+?]|\{([0-9]+)(?:(,)([0-9]*))?\})[?+]?")
_GROUP = re.compile(r"\((?:\?(?:(:|=|!|>|<=|<!)|<([A-Za-z][A-Za-z0-9]*)>|([a-zA-Z]*(?:-[a-zA-Z]*)?)([:)])))?")
_HEXADECIMAL = re.compile(r"x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]+)\}|u([0-9a-fA-F]{4})")
_OCTAL = re.compile(r"0([0-3][0-7]{2}|[0-7]{1,2})")
_PROPERTY = re.compile(r"([pP])(?:\{([A-Za-z_=]+)\}|([A-Z]))")
_MOST = 10_000  # letters: one that is longer was not written by hand


class JavaPatternError(ValueError):
    """Raise when a text is no regular expression of Java, or one that has no counterpart in Python."""


def java_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern that Java's `Pattern.compile(text)` is. Raises `JavaPatternError`."""
    if len(text) > _MOST:
        raise JavaPatternError(f"has {len(text)} letters, expected at most {_MOST}")
    try:
        return re.compile(_Translation(text).whole(), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise JavaPatternError(f"cannot be used: {error}") from error


class _Translation:
    """Walks over a pattern once and writes Python's."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._groups = 0
        self._names: set[str] = set()

    def whole(self) -> str:
        """Return the translation."""
        translated = self._alternatives("")
        if self._at < len(self._text):
            raise self._mistake("an unmatched ')'")
        return translated

    def _mistake(self, what: str) -> JavaPatternError:
        return JavaPatternError(f"has {what} at {self._at}")

    def _next(self, count: int = 1) -> str:
        return self._text[self._at : self._at + count]

    def _taken(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    # --- what is in a group

    def _alternatives(self, flags: str) -> str:
        """Return all up to the end of the group. Flags that are set in it hold to its end, over each `|`."""
        written: list[str] = []
        opened = 0
        while self._at < len(self._text) and self._next() != ")":
            if self._next() == "|":
                self._at += 1
                written.append(")" * opened + "|")
                opened = 1
                written.append(_opening(flags))
                continue
            changed = self._flags_alone(flags)
            if changed is None:
                written.append(self._repeated(self._atom(flags)))
                continue
            flags = changed
            opened += 1
            written.append(_opening(flags))
        return "".join(written) + ")" * opened

    def _flags_alone(self, flags: str) -> str | None:
        """Return the flags that hold from here on, where they are changed here, such as by `(?i)`."""
        match = _GROUP.match(self._text, self._at)
        if match is None or match[4] != ")":
            return None
        changed = self._changed(flags, match[3])
        self._at = match.end()
        return changed

    def _changed(self, flags: str, text: str) -> str:
        on, _, off = text.partition("-")
        if set(on + off) - {"i", "s"}:
            message = f"flags {text!r} at {self._at + 2} are not known, expected some of i and s"
            raise JavaPatternError(message)
        return "".join(sorted((set(flags) | set(on)) - set(off)))

    def _repeated(self, atom: str) -> str:
        match = self._taken(_QUANTIFIER)
        return atom if match is None else atom + match[0]

    def _atom(self, flags: str) -> str:
        letter = self._next()
        if letter == "(":
            return self._group(flags)
        if letter == "[":
            self._at += 1
            return self._class()
        if letter == "\\":
            self._at += 1
            return self._escape()
        if letter in "*+?{":
            raise self._mistake(f"{letter!r} with nothing to repeat")
        self._at += 1
        if letter == ".":
            return _ANYTHING if "s" in flags else _DOT
        return {"^": "(?:\\A)", "$": _END}.get(letter) or re.escape(letter)

    def _group(self, flags: str) -> str:
        match = self._taken(_GROUP)
        if match is None or (match[0] == "(" and self._next() == "?"):
            raise self._mistake("a kind of group that is not known")
        kind, name, changed, _ = match.groups()
        opening = match[0]
        if name is not None:
            if name in self._names:
                raise self._mistake(f"a second group {name!r}")
            self._names.add(name)
            opening = f"(?P<{name}>"
        elif changed is not None:
            flags = self._changed(flags, changed)
            opening = _opening(flags)
        if kind is None and changed is None:
            self._groups += 1
        inner = self._alternatives(flags)
        if self._next() != ")":
            raise self._mistake("no ')' to a '('")
        self._at += 1
        return f"{opening}{inner})"

    # --- escapes

    def _escape(self) -> str:
        """Return what a backslash outside of a class stands for."""
        letter = self._next()
        if letter == "Q":
            return self._quoted()
        if letter == "k":
            return self._by_name()
        if letter in _ANCHORS and self._next(2) != "b{":
            self._at += 1
            return _ANCHORS[letter]
        if letter == "R":
            self._at += 1
            return f"(?:\\r\\n|[{_VERTICAL}])"
        if "1" <= letter <= "9":
            return self._by_number()
        found = self._set()
        return re.escape(self._character()) if found is None else found

    def _quoted(self) -> str:
        end = self._text.find("\\E", self._at)
        end = len(self._text) if end < 0 else end
        quoted = self._text[self._at + 1 : end]
        self._at = min(end + 2, len(self._text))
        # what is repeated is the last letter alone
        return re.escape(quoted) if quoted else "(?:)"

    def _by_name(self) -> str:
        match = self._taken(re.compile(r"k<([A-Za-z][A-Za-z0-9]*)>"))
        if match is None or match[1] not in self._names:
            raise self._mistake("a reference to a group that is not there")
        return f"(?P={match[1]})"

    def _by_number(self) -> str:
        """Return a reference: as many digits as there are groups for; one to no group matches nothing."""
        number = int(self._next())
        self._at += 1
        while self._next().isascii() and self._next().isdigit():
            longer = number * 10 + int(self._next())
            if longer > self._groups:
                break
            number = longer
            self._at += 1
        return f"(?:\\{number})" if number <= self._groups else _NEVER

    def _set(self) -> str | None:
        """Return the class that an escape such as `\\w` stands for; None where it stands for one character."""
        letter = self._next()
        if letter in _SETS:
            self._at += 1
            return f"[{_SETS[letter]}]"
        if letter in _OTHERS:
            self._at += 1
            return _OTHERS[letter]
        if letter not in ("p", "P"):
            return None
        match = self._taken(_PROPERTY)
        inner = None if match is None else _POSIX.get(match[2] or "")
        if match is None or inner is None:
            raise self._mistake("a property that is not known here, expected one as \\p{Alpha}")
        return f"[{inner}]" if match[1] == "p" else f"[^{inner}]"

    def _character(self) -> str:
        """Return the character that an escape stands for."""
        letter = self._next()
        if letter in _CHARACTERS:
            self._at += 1
            return _CHARACTERS[letter]
        match = self._taken(_HEXADECIMAL)
        if match is not None:
            number = int(match[1] or match[2] or match[3], 16)
            if number > 0x10FFFF:
                raise self._mistake("a character that does not exist")
            return chr(number)
        match = self._taken(_OCTAL)
        if match is not None:
            return chr(int(match[1], 8))
        if letter == "c" and len(self._next(2)) == 2:
            self._at += 2
            return chr(ord(self._text[self._at - 1]) ^ 64)
        if not letter or (letter.isascii() and letter.isalnum()):
            raise self._mistake("an escape that is not known")
        self._at += 1
        return letter

    # --- classes

    def _class(self) -> str:
        """Return a class after its `[`: an intersection of unions, each of one character."""
        negated = self._next() == "^"
        self._at += negated
        operands = [self._union(first=True)]
        while self._next(2) == "&&":
            while self._next() == "&":
                self._at += 1
            if self._next() != "]":
                operands.append(self._union(first=False))
        if self._next() != "]":
            raise self._mistake("no ']' to a '['")
        self._at += 1
        operands = [operand for operand in operands if operand]
        if not operands:
            raise self._mistake("a class of nothing")
        if negated and (len(operands) > 1 or any(len(operand) > 1 for operand in operands)):
            raise self._mistake("a negated class with classes in it, which is not known here")
        plain = len(operands) == 1 and len(operands[0]) == 1
        if plain and operands[0][0].startswith("[") and not operands[0][0].startswith("[^"):
            return ("[^" if negated else "[") + operands[0][0][1:]
        joined = [each[0] if len(each) == 1 else f"(?:{'|'.join(each)})" for each in operands]
        if negated:
            return f"(?:(?!{joined[0]}){_ANYTHING})"
        return (
            joined[0] if len(joined) == 1 else f"(?:{''.join(f'(?={each})' for each in joined)}{_ANYTHING})"
        )

    def _union(self, *, first: bool) -> list[str]:
        """Return classes, any of which a character may be in; the plain characters and ranges are the first of them."""
        plain: list[str] = []
        others: list[str] = []
        while self._at < len(self._text) and self._next(2) != "&&" and (self._next() != "]" or first):
            first = False
            letter = self._next()
            if letter == "[":
                self._at += 1
                others.append(self._class())
                continue
            if letter == "\\" and self._text[self._at + 1 : self._at + 2] == "Q":
                self._at += 1
                plain.append(self._quoted())
                continue
            if letter == "\\":
                self._at += 1
                found = self._set()
                if found is not None:
                    others.append(found)
                    continue
                start = self._character()
            else:
                self._at += 1
                start = letter
            plain.append(self._range(start))
        return ([f"[{''.join(plain)}]"] if plain else []) + others

    def _range(self, start: str) -> str:
        """Return a character, or the range that it begins."""
        if self._next() != "-" or self._next(2)[1:] in ("", "]", "["):
            return _literal(start)
        self._at += 1
        end = self._next()
        self._at += 1
        if end == "\\":
            end = self._character()
        if end < start:
            raise self._mistake(f"a range from {start!r} to {end!r}")
        return f"{_literal(start)}-{_literal(end)}"


def _opening(flags: str) -> str:
    return "(?i:" if "i" in flags else "(?-i:"


def _literal(character: str) -> str:
    return f"\\U{ord(character):08x}"
