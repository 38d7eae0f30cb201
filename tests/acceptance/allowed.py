"""Items of Lightning's test suite that may fail on csx, each group with the reason."""

from __future__ import annotations

ALLOWED: dict[str, tuple[str, ...]] = {}
