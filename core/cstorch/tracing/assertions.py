"""`assert` about a tensor in a traced step: checked after each run, instead of once or not at all.

Python asks a tensor for its truth only to branch, which a program cannot do. In an assert statement the step goes on
one way only, so the branch is known, and what remains is to look at the value when it is there.
"""

from __future__ import annotations

import dis
import linecache
from types import FrameType
from typing import Any

import torch

from cstorch.tracing.context import context

_NOT_THERE = ("CACHE", "TO_BOOL", "EXTENDED_ARG", "NOT_TAKEN")
_PYTEST = "@py_assert"  # variables of an assert statement as pytest compiles it


def asserted(frame: FrameType) -> bool | None:
    """What an assert statement of `frame`, which asks a value for its truth just now, wants it to be.

    None where it is no assert statement, or where the statement may go on whatever the answer.
    """
    instructions = [i for i in dis.get_instructions(frame.f_code) if i.opname not in _NOT_THERE]
    here = next((n for n, i in enumerate(instructions) if i.offset >= frame.f_lasti), len(instructions))
    if len(instructions) < here + 2:
        return None
    now, following = instructions[here : here + 2]
    if now.opname == "UNARY_NOT":
        return False if str(following.argval).startswith(_PYTEST) else None
    if "JUMP" not in now.opname or not now.opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    jumps_if = now.opname.endswith("IF_TRUE")
    if _raises(following) or str(instructions[here - 1].argval).startswith(_PYTEST):
        return jumps_if
    target = next((i for i in instructions if i.offset >= now.argval), None)
    return not jumps_if if target is not None and _raises(target) else None


def _raises(instruction: dis.Instruction) -> bool:
    return instruction.opname == "LOAD_ASSERTION_ERROR" or instruction.argval is AssertionError


def check_later(value: torch.Tensor, frame: FrameType, outcome: bool) -> bool:
    """Record that each run checks an assertion, and go on as if it held.

    Args:
        value: The tensor that is asked for its truth.
        frame: Where.
        outcome: What the assertion wants it to be.
    """
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()

    def check(value: Any) -> None:
        if bool(value) is not outcome:
            raise AssertionError(f"{text} fails at {file}:{line}, after a run of the step: the value is {value}")

    assert context.recording is not None
    context.recording.add_effect("closure", check, (value,), {})
    return outcome


def may_check() -> bool:
    """Whether every run of the step that is being traced can be checked: not in the loop of an executor."""
    return context.recording is not None and context.iteration is None
