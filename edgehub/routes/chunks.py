"""The compiled conditions of all routes that listen to one source.

Owns their partition: one function evaluates up to a hundred conditions, which makes it fast; so a
change of one route among thousands compiles a hundred again and not all. Immutable: a change
returns another object that shares the functions of the others.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from edgehub.routes.catch_all import is_always_true
from edgehub.routes.query.codegen import compile_predicates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from edgehub.routes.query.codegen import Predicates
    from edgehub.routes.query.syntax import Expression

CONDITIONS_MAX: Final = 100
"""In one function. Compiling so many takes some 10 ms; a hundred routes are one function still."""

CHARACTERS_MAX: Final = 4_096
"""Of the conditions in one function; a longer condition has a function of its own."""

Condition = tuple[int, "Expression | None"]
"""Slot, and the condition, None = always."""


class Chunk:
    """Up to `CONDITIONS_MAX` conditions, and their function once it is needed."""

    def __init__(self, conditions: tuple[Condition, ...], hub_id: str) -> None:
        self.conditions = conditions
        self._hub_id = hub_id
        self._function: Predicates | None = None

    @property
    def cold(self) -> bool:
        """Return whether its function is not compiled yet."""
        return self._function is None

    def function(self) -> Predicates:
        """Return the function."""
        if self._function is None:
            bits = [(1 << slot, tree) for slot, tree in self.conditions]
            self._function = compile_predicates(bits, self._hub_id)
        return self._function


class Chunks:
    """All conditions of one source."""

    def __init__(self, chunks: tuple[Chunk, ...], hub_id: str) -> None:
        self._chunks = chunks
        self._hub_id = hub_id

    @property
    def empty(self) -> bool:
        """Return whether there are no conditions."""
        return not self._chunks

    @property
    def takes_everything(self) -> bool:
        """Return whether a condition takes every message of the source."""
        return any(is_always_true(tree) for chunk in self._chunks for _, tree in chunk.conditions)

    def changed(self, removed: AbstractSet[int], added: Iterable[Condition]) -> Chunks:
        """Return these conditions with some slots removed and others added."""
        kept: list[Chunk] = []
        waiting = deque(added)
        for chunk in self._chunks:
            staying = [entry for entry in chunk.conditions if entry[0] not in removed]
            taken = _take(waiting, staying)
            if not taken and len(staying) == len(chunk.conditions):
                kept.append(chunk)
            elif staying or taken:
                kept.append(Chunk((*staying, *taken), self._hub_id))
        while waiting:
            kept.append(Chunk(tuple(_take(waiting, ())), self._hub_id))
        return Chunks(tuple(kept), self._hub_id)

    def compile(self) -> Iterator[Any]:
        """Compile the missing functions, one with each step."""
        for chunk in self._chunks:
            if chunk.cold:
                yield chunk.function()

    def functions(self) -> list[Predicates]:
        """Return all functions."""
        return [chunk.function() for chunk in self._chunks]


def _take(waiting: deque[Condition], staying: Sequence[Condition]) -> list[Condition]:
    """Remove from `waiting` and return what fits into one function with those in it."""
    taken: list[Condition] = []
    characters = sum(map(_characters, staying))
    while waiting and len(staying) + len(taken) < CONDITIONS_MAX:
        characters += _characters(waiting[0])
        if characters > CHARACTERS_MAX and (staying or taken):
            break
        taken.append(waiting.popleft())
    return taken


def _characters(condition: Condition) -> int:
    tree = condition[1]
    return 0 if tree is None else tree.span.end - tree.span.start
