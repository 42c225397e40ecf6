"""Route text into tokens.

Owns the lexical rules: the longest match wins, names may hold almost any character, so that `a-b`
is one name, and `/*` is a star after a path but a comment elsewhere. Invariant: tokens carry their
offsets in the route text; `tokenize` raises nothing but `RouteCompileError`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache
from typing import Final, Self

from edgehub.errors import RouteCompileError, RouteFault, RouteFaultKind
from edgehub.routes.hints import clipped
from edgehub.routes.query.text import lone_surrogate_at

END: Final = "$END"
"""Type of what follows the last token."""
TEXT_CHARS_MAX: Final = 32_768
FAULTS_MAX: Final = 100
"""Faults of one text that are reported."""

_NAME: Final = r"""[^()<>@,;:\\"/\[\]?={} \t\r\n]"""

_ESCAPES: Final = r"""\\["'\\]|\\u[0-9A-Fa-f]{4}"""
_DOUBLE_QUOTED: Final = rf""""(?:[^"\\]|{_ESCAPES})*"""
_SINGLE_QUOTED: Final = rf"""'(?:[^'\\]|{_ESCAPES})*"""

_RULES: Final = (
    # Name, pattern, and what its first character matches. The order decides between matches of the
    # same length.
    ("SELECT", r"(?i:select)", r"(?i:s)"),
    ("FROM", r"(?i:from)", r"(?i:f)"),
    ("WHERE", r"(?i:where)", r"(?i:w)"),
    ("INTO", r"(?i:into)", r"(?i:i)"),
    ("STRING", rf"""{_DOUBLE_QUOTED}"|{_SINGLE_QUOTED}'""", r"""["']"""),
    ("UNTERMINATED", rf"{_DOUBLE_QUOTED}|{_SINGLE_QUOTED}", r"""["']"""),
    ("INTEGER", r"-?[0-9]+", r"[-0-9]"),
    ("HEX", r"0[xX][0-9A-Fa-f]+", r"0"),
    ("REAL", r"-?[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?|-?[0-9]+[eE][+-]?[0-9]+", r"[-0-9.]"),
    ("TRUE", r"true", r"t"),
    ("FALSE", r"false", r"f"),
    ("NULL", r"null", r"n"),
    ("UNDEFINED", r"undefined", r"u"),
    ("LPAR", r"\(", r"\("),
    ("RPAR", r"\)", r"\)"),
    ("COMMA", r",", r","),
    ("LBRACE", r"\{", r"\{"),
    ("RBRACE", r"\}", r"\}"),
    ("PLUS", r"\+", r"\+"),
    ("MINUS", r"-", r"-"),
    ("STAR", r"\*", r"\*"),
    ("SLASH", r"/", r"/"),
    ("PERCENT", r"%", r"%"),
    ("AND", r"(?i:and)", r"(?i:a)"),
    ("OR", r"(?i:or)", r"(?i:o)"),
    ("NOT", r"(?i:not)", r"(?i:n)"),
    ("EQUALITY", r"!=|<>|=", r"[!<=]"),
    ("ORDER", r"<=|>=|<|>", r"[<>]"),
    ("CONCAT", r"\|\|", r"\|"),
    ("COALESCE", r"\?\?", r"\?"),
    ("DOLLAR_NAME", rf"\$(?:{_NAME}|[\[\]])+", r"\$"),
    ("NAME", rf"{_NAME}+", _NAME),
    ("BRACKETS", rf"(?:{_NAME}|[\[\]])+", rf"{_NAME}|[\[\]]"),
)
_PATTERNS: Final = tuple(
    (name, re.compile(pattern), re.compile(first)) for name, pattern, first in _RULES
)
_BLANK: Final = re.compile(r"[ \t\r\n]+")
_MQTT_FILTER: Final = re.compile(r"/mqtt/[^ \t\r\n]*", re.IGNORECASE)
_AFTER_STAR: Final = re.compile(
    rf"[ \t\r\n]*(?:/|\Z)|[ \t\r\n]+(?:where|into)(?!{_NAME})", re.IGNORECASE
)
_ESCAPE: Final = re.compile(r"""\\(?:["'\\]|u[0-9A-Fa-f]{4})""")


@lru_cache(maxsize=1_024)
def _patterns_for(first: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the patterns that may match from a character on; trying all takes most of a parse."""
    return tuple((name, pattern) for name, pattern, begins in _PATTERNS if begins.match(first))


class RouteToken(str):
    """A piece of a route text that has a meaning of its own.

    Args:
        kind: Name of its kind.
        text: The piece.
        start: Offset of its first character.
        line: Of that character, counted from 1.
        column: Likewise.

    Attributes:
        type: Its kind.
        end: Offset of the character after its last.
    """

    __slots__ = ("column", "end", "line", "start", "type")
    type: str
    start: int
    line: int
    column: int
    end: int

    def __new__(
        cls, kind: str, text: str = "", start: int = 0, line: int = 1, column: int = 1
    ) -> Self:
        """Build a token; in `__new__`, since a `str` is created with its text alone."""
        token = super().__new__(cls, text)
        token.type = kind
        token.start = start
        token.line = line
        token.column = column
        token.end = start + len(text)
        return token


class Positions:
    """Converts offsets of one text into lines and columns, both 1-based."""

    def __init__(self, text: str) -> None:
        self._line_starts = [0, *(found.end() for found in re.finditer(r"\n", text))]

    def at(self, offset: int) -> tuple[int, int]:
        """Return line and column of `offset`."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1


def tokenize(text: str, positions: Positions) -> list[RouteToken]:
    """Split a route or a condition into tokens; blanks and comments are dropped.

    Raises:
        RouteCompileError: For characters that form no token; all of them are reported.
    """
    return _Scanner(text, positions).scan()


class _Scanner:
    def __init__(self, text: str, positions: Positions) -> None:
        self._text = text
        self._positions = positions
        self._at = 0
        self._tokens: list[RouteToken] = []
        self._faults: list[RouteFault] = []
        self._path = False
        self._no_comment = False

    def scan(self) -> list[RouteToken]:
        if len(self._text) > TEXT_CHARS_MAX:
            self._fault(0, f"the text has more than {TEXT_CHARS_MAX} characters")
            raise RouteCompileError(self._faults)
        lone = lone_surrogate_at(self._text)
        if lone is not None:
            self._fault(lone, "the text holds half a character", r"write no lone \ud800 to \udfff")
            raise RouteCompileError(self._faults)
        while self._at < len(self._text) and len(self._faults) < FAULTS_MAX:
            blank = _BLANK.match(self._text, self._at)
            if blank is not None:
                self._at = blank.end()
            elif not self._skip_comment() and not self._take_filter():
                self._take()
        if self._faults:
            raise RouteCompileError(self._faults)
        return self._tokens

    def _take(self) -> None:
        name, end = "", self._at
        for candidate, pattern in _patterns_for(self._text[self._at]):
            found = pattern.match(self._text, self._at)
            if found is not None and found.end() > end:
                name, end = candidate, found.end()
        if name in ("", "UNTERMINATED", "BRACKETS"):
            self._refuse(name, end)
        else:
            self._push(name, end)

    def _push(self, name: str, end: int) -> None:
        line, column = self._positions.at(self._at)
        self._tokens.append(RouteToken(name, self._text[self._at : end], self._at, line, column))
        # Only between FROM and the next clause can `/*` be a star.
        self._path = name == "FROM" or (self._path and name not in ("WHERE", "INTO"))
        self._at = end

    def _take_filter(self) -> bool:
        if not self._path or self._tokens[-1].type != "FROM":
            return False
        found = _MQTT_FILTER.match(self._text, self._at)
        if found is None:
            return False
        self._push("MQTT_FILTER", found.end())
        return True

    def _skip_comment(self) -> bool:
        if not self._text.startswith("/*", self._at):
            return False
        end = self._comment_end()
        # Without an end it is no comment; what slash and star then mean is up to the parser.
        if end < 0 or (self._path and self._is_star(end)):
            return False
        if self._path and "/*" in self._text[self._at + 2 : end]:
            self._fault(
                self._at,
                "`/*` can be read as a star of the path or as the start of a comment",
                "write the star next to the path, and no `/*` inside the comment",
            )
        self._at = end + 2
        return True

    def _comment_end(self) -> int:
        """Return where the comment that begins here ends; -1 = nowhere."""
        # Where none ended before, none ends behind it: thousands of openings are searched once.
        end = -1 if self._no_comment else self._text.find("*/", self._at + 2)
        self._no_comment = end < 0
        return end

    def _is_star(self, end: int) -> bool:
        """Return whether a star is here, not a comment up to `end`."""
        last = self._tokens[-1]
        if last.type == "FROM":
            # A comment before the path is followed by the path.
            rest = end + 2
            blank = _BLANK.match(self._text, rest)
            return not self._text.startswith("/", blank.end() if blank else rest)
        if last.end != self._at:
            return False
        return _AFTER_STAR.match(self._text, self._at + 2) is not None

    def _refuse(self, name: str, end: int) -> None:
        start = self._at
        self._at = max(end, start + 1)
        if name == "UNTERMINATED":
            self._refuse_string(start, end)
        elif name == "BRACKETS":
            self._fault(
                start,
                f"`{self._text[start:end]}`: brackets are not allowed here",
                "only a body path such as `$body.axes[2].rms` has them",
            )
        else:
            self._fault(start, f"unexpected character {self._text[start]!r}")

    def _refuse_string(self, start: int, end: int) -> None:
        if end < len(self._text) and self._text[end] == "\\":
            self._fault(
                end,
                f"unknown escape `{self._text[end : end + 2]}` in a string",
                "allowed are \\\" \\' \\\\ and \\uXXXX",
            )
            self._at = _string_end(self._text, start)
        else:
            quote = self._text[start]
            self._fault(start, "the string has no end", f"close it with {quote}")

    def _fault(self, offset: int, message: str, hint: str = "") -> None:
        line, column = self._positions.at(offset)
        self._faults.append(
            RouteFault(
                kind=RouteFaultKind.SYNTAX,
                line=line,
                column=column,
                message=clipped(message),
                hint=hint,
            )
        )


def _string_end(text: str, start: int) -> int:
    """Find where a string with unknown escapes was meant to end, so that reading can go on."""
    found = re.compile(rf"(?:[^{text[start]}\\]|\\.)*{text[start]}", re.DOTALL).match(
        text, start + 1
    )
    return len(text) if found is None else found.end()


def unescape(quoted: str) -> str:
    """Return the text of a string token: quotes off, escapes resolved from left to right."""

    def resolve(found: re.Match[str]) -> str:
        escape = found.group()
        return chr(int(escape[2:6], base=16)) if escape[1] == "u" else escape[1]

    return _ESCAPE.sub(resolve, quoted[1:-1])
