"""A Dockerfile as stages of instructions, and what they mean for a container."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Instruction = tuple[str, str]


def read_stages(file: Path) -> list[list[Instruction]]:
    """Return the instructions of each stage; what stands before the first `FROM` is left out."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text("utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    stages: list[list[Instruction]] = []
    for line in lines:
        if not line.strip():
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append([])
        if stages:
            stages[-1].append((word, rest.strip()))
    return stages


def values(stage: list[Instruction], word: str) -> list[str]:
    """Return the arguments of every instruction of that name."""
    return [rest for name, rest in stage if name == word]


def environment(stage: list[Instruction]) -> dict[str, str]:
    """Return the variables that a stage sets."""
    pairs = [pair for rest in values(stage, "ENV") for pair in shlex.split(rest)]
    return dict(pair.split("=", 1) for pair in pairs)


def exec_form(argument: str) -> list[str]:
    """Return the words of an instruction in exec form; a shell form fails."""
    words = json.loads(argument)
    assert isinstance(words, list)
    return [str(word) for word in words]
