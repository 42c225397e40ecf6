"""Messages and hints of syntax errors.

Pure: the parser passes the token, the tokens before it and the kinds of token that would fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.routes.query.lexer import END

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.routes.query.lexer import RouteToken

_KEYWORDS: Final = frozenset({"SELECT", "FROM", "WHERE", "INTO", "AND", "OR", "NOT"})
_PATH_STRANGERS: Final = _KEYWORDS | {
    "INTEGER",
    "HEX",
    "REAL",
    "TRUE",
    "FALSE",
    "NULL",
    "UNDEFINED",
    "DOLLAR_NAME",
}
_OPERANDS: Final = frozenset({"NAME", "STRING", "INTEGER", "REAL", "HEX", "DOLLAR_NAME"})
_SINKS: Final = '$upstream, BrokeredEndpoint("...") or Endpoint("...")'
_FOREIGN_OPERATORS: Final = {"&&": "AND", "&": "AND", "|": "OR", "!": "NOT"}


def unexpected(
    token: RouteToken, before: Sequence[RouteToken], fitting: frozenset[str]
) -> tuple[str, str]:
    """Return message and hint for a token that fits nowhere.

    Args:
        token: The token, of type `$END` where the text ends too early.
        before: All tokens in front of it.
        fitting: Types of token that would have fitted.
    """
    last = before[-1] if before else None
    if last is None:
        return "a route begins with FROM", "FROM /messages/* INTO $upstream"
    if token.type == END:
        return _ends_early(before, fitting)
    what = f"unexpected `{token}`"
    if fitting == {END}:
        return f"unexpected `{token}` after the end", "nothing may follow"
    if "FROM" in fitting:
        return what, "a route begins with FROM and a path, for example FROM /messages/*"
    if last.type == "SLASH" and _in_path(before):
        return f"`{token}` cannot be a part of a path", _path_hint(token)
    return what, _hint(token, last, before, fitting)


def _ends_early(before: Sequence[RouteToken], fitting: frozenset[str]) -> tuple[str, str]:
    if _open_parentheses(before) and "RPAR" in fitting:
        return "a closing `)` is missing", "each `(` needs its `)`"
    if "INTO" in fitting:
        return "INTO and a sink are missing", "end the route with INTO $upstream"
    if before[-1].type == "INTO":
        return "the sink is missing", "write INTO $upstream"
    if before[-2:-1] and before[-2].type == "INTO":
        wanted = "$upstream" if before[-1].lower() == "upstream" else _SINKS
        return f"`{before[-1]}` is not a whole sink", f"write {wanted}"
    return f"something is missing after `{before[-1]}`", ""


def _hint(
    token: RouteToken, last: RouteToken, before: Sequence[RouteToken], fitting: frozenset[str]
) -> str:
    for word in (str(token), str(last)):
        if word in _FOREIGN_OPERATORS:
            return f"the operator is written {_FOREIGN_OPERATORS[word]}"
    if last.type == "SLASH" and token.type == "STAR":
        return "`/*` begins a comment, which ends with `*/`"
    if last.type == token.type == "EQUALITY":
        return "equality is one `=`"
    if token.type in _OPERANDS and last.type in _OPERANDS:
        return _adjacent_hint(token, last)
    return _place_hint(token, last, before, fitting)


def _place_hint(
    token: RouteToken, last: RouteToken, before: Sequence[RouteToken], fitting: frozenset[str]
) -> str:
    hint = ""
    if last.type == "INTO":
        hint = f"a sink is {_SINKS}"
    elif last.type == "FROM":
        hint = "a source is a path such as /messages/*, without quotes"
    elif token.type == "INTO" and _open_parentheses(before):
        hint = "a closing `)` is missing before it"
    elif token.type == "RPAR" and not _open_parentheses(before):
        hint = "no `(` is open here"
    elif token.type in _KEYWORDS and last.type == "WHERE":
        hint = f"`{token}` is a keyword; something is missing between it and `{last}`"
    elif "INTO" in fitting and _in_path(before):
        hint = "after the source comes WHERE or INTO"
    return hint


def _adjacent_hint(token: RouteToken, last: RouteToken) -> str:
    if last == "$":
        return "no blank may follow the `$` of a name"
    for word in (last, token):
        if word.type == "NAME" and any(letter in "'+-*%!|&" for letter in word):
            return f"`{word}` is read as one name; put blanks around operators and words"
    if token.startswith("-"):
        return f"for a difference put a blank after the minus: `- {token[1:]}`"
    return f"an operator is missing between `{last}` and `{token}`"


def _path_hint(token: RouteToken) -> str:
    if token.type == "SLASH":
        return "write one slash between two names"
    if token.type in _PATH_STRANGERS:
        return (
            "keywords, numbers and $names cannot be written in a path; take a path above it and "
            f"WHERE $connectionModuleId = '{token}'"
        )
    return "a path has names without blanks, quotes and brackets"


def _open_parentheses(before: Sequence[RouteToken]) -> bool:
    depth = 0
    for token in before:
        depth += (token.type == "LPAR") - (token.type == "RPAR")
    return depth > 0


def _in_path(before: Sequence[RouteToken]) -> bool:
    return all(token.type not in ("WHERE", "INTO") for token in before) and any(
        token.type == "FROM" for token in before
    )
