"""What conformance items are known not to pass, each with the outcome and the reason. Keys are patterns of names."""

from __future__ import annotations

EXPECTED: dict[str, tuple[str, str]] = {}
