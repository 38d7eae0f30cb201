"""The plugin: gives cstorch the activities of this package by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cstorch.plugins import hookimpl

if TYPE_CHECKING:
    from cstorch.plugins import ActivityRegistry


@hookimpl
def cstorch_register_profiler_activities(registry: ActivityRegistry) -> None:
    """Register all activities."""
    from cstorch_psutil.activities import ACTIVITIES

    for activity in ACTIVITIES:
        registry.register(activity)
