"""Keeps PyTorch's Python device guard out of the way of an error that leaves the autograd engine (torch 2.13).

While such an error unwinds, the engine puts stream and device back through the guard, which calls Python, which ends
the process. Here the two functions that it calls then, in the table of virtual functions of the one guard object, are
those of the meta device, which do nothing. Needs no compiler; the order of the table is read from PyTorch's header.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import torch

__all__ = ["let_errors_pass", "virtual_functions"]

_CALLED_WHILE_UNWINDING = ("uncheckedSetDevice", "exchangeStream")
_BEFORE = 2  # entries of a table before the address that objects hold: offset to top, type information
_kept: Any = None


def virtual_functions() -> list[str]:
    """The virtual functions of a device guard, in the order of their table."""
    header = Path(torch.__file__).parent / "include" / "c10" / "core" / "impl" / "DeviceGuardImplInterface.h"
    text = header.read_text()
    start = text.index("struct C10_API DeviceGuardImplInterface")
    body = text[start : text.index("virtual ~DeviceGuardImplInterface", start)]
    return re.findall(r"virtual\s+[\w:*]+\s+(\w+)\(", body)


def let_errors_pass() -> bool:
    """Change the guard that is registered for csx, once; True when it is changed.

    Returns:
        False where PyTorch is not built as expected, or a guard of another kind is there.
    """
    global _kept
    if _kept is not None:
        return True
    try:
        names = virtual_functions()
        places = [names.index(name) for name in _CALLED_WHILE_UNWINDING]
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        kinds: Any = torch._C._autograd.DeviceType
        csx, meta = int(kinds.PrivateUse1), int(kinds.Meta)
        registry = (ctypes.c_void_p * (csx + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    except (OSError, ValueError, AttributeError):
        return False
    if not registry[csx] or not registry[meta]:
        return False
    pointer = ctypes.POINTER(ctypes.c_void_p)
    guard, idle = (ctypes.cast(registry[kind] or 0, pointer) for kind in (csx, meta))
    table, idle_table = (ctypes.cast(thing[0], pointer) for thing in (guard, idle))
    kind_of = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)(idle_table[0])
    if kind_of(registry[meta]) != meta:
        return False
    count = len(names) + 2  # and two destructors
    made = (ctypes.c_void_p * (_BEFORE + count))(*(table[i] for i in range(-_BEFORE, count)))
    for place in places:
        made[_BEFORE + place] = idle_table[place]
    guard[0] = ctypes.addressof(made) + _BEFORE * ctypes.sizeof(ctypes.c_void_p)
    _kept = made
    return True
