"""How an executable was made: compiled, loaded from the cache, or interpreted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Made:
    """How an executable was made.

    Attributes:
        how: "compiled", "loaded from the cache", "interpreted", or "interpreted while it is compiled".
        seconds: How long that took.
        path: The library; empty when interpreted.
        reason: Why it is interpreted; empty otherwise.
        peak_bytes: The most memory that this process, or the C++ compiler, had taken when it was compiled.
    """

    how: str
    seconds: float = 0.0
    path: str = ""
    reason: str = ""
    peak_bytes: int = 0

    def __str__(self) -> str:
        after = f" in {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.how}{after}{f': {self.reason}' if self.reason else ''}"
