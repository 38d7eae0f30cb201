"""Plugins: other distributions bring backends, profiler activities, graph passes and appliances.

Installed plugins are found at the first use: `import cstorch` loads none. A broken one is named in one warning, or in
the error when the program asked for it, and left out. `CSTORCH_DISABLE_PLUGINS=1` (or `all`) in the environment leaves
all installed plugins out; a list of names of plugins or distributions, separated by commas, leaves those out. What a
program registers itself stays.
"""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pluggy

from cstorch.errors import PluginError, words
from cstorch.plugin_host import BUILT_IN, ActivityRegistry, BackendRegistry, Host, Implementation, Plugin, advice
from cstorch.tracing.context import context

if TYPE_CHECKING:
    from cstorch.appliance import Appliance
    from cstorch.backends.base import Backend

__all__ = ["ActivityRegistry", "BackendRegistry", "Plugin", "hookimpl", "list", "register", "reset", "unregister"]

hookimpl = pluggy.HookimplMarker("cstorch")
"""Decorates the functions with which a plugin implements hooks: see `cstorch.hookspecs`."""

_host: Host | None = None


def _loaded() -> Host:
    global _host
    if _host is None:
        made = Host()
        made.load_installed()
        _host = made
    return _host


def register(plugin: Any, name: str | None = None) -> str:
    """Register a plugin of the program.

    Args:
        plugin: A module or an object whose functions are decorated with `cstorch.plugins.hookimpl`.
        name: Its name; by default that of the module, or of the object's class.

    Returns:
        The name, for `unregister`.

    Raises:
        PluginError: the name is taken, a hook has a wrong name or signature, or what it registers is refused.
    """
    host = _loaded()
    chosen = name or getattr(plugin, "__name__", None) or type(plugin).__name__
    try:
        host.add(Plugin(chosen), lambda: plugin)
    except PluginError as error:
        raise PluginError(f"the plugin {chosen!r} is not registered: {error}.") from error
    _warn_of_compiled(host.plugins[chosen])
    return chosen


def unregister(name: str) -> None:
    """Forget a plugin, installed or registered, until the process ends.

    Args:
        name: Its name.

    Raises:
        PluginError: there is no plugin of that name.
    """
    host = _loaded()
    if name not in host.plugins:
        raise PluginError(f"there is no plugin {name!r} to unregister; there are {', '.join(host.plugins) or 'none'}.")
    _warn_of_compiled(host.plugins[name])
    host.remove(name)


def _warn_of_compiled(plugin: Plugin) -> None:
    if context.backend is not None and context.backend.programs and "cstorch_transform_graph" in plugin.hooks:
        warnings.warn(
            f"{plugin} has a graph pass, and {context.backend.programs} programs are compiled already: they stay as "
            "they are. Register and unregister graph passes before the first step.",
            stacklevel=3,
        )


def list() -> builtins.list[Plugin]:  # noqa: A001
    """All plugins, those that were left out with the reason in `problem`."""
    return [*_loaded().plugins.values()]


def reset() -> None:
    """Forget all plugins; the installed ones are looked up again at the next use."""
    global _host
    _host = None


# -- what the rest of cstorch asks ---------------------------------------------------------------------------


def _find(kind: str, name: str, expected: str) -> tuple[Plugin, Any]:
    host = _loaded()
    entries: dict[str, tuple[str, Any]] = getattr(host, kind)
    if name not in entries:
        broken = [plugin for plugin in host.plugins.values() if plugin.problem is not None]
        host.unsaid.clear()
        why = "".join(f" {plugin} was left out: {advice(plugin)}" for plugin in broken)
        raise ValueError(f"{expected}{why}")
    host.warn()
    owner, value = entries[name]
    return host.plugins[owner], value


def backend_factory(name: str) -> Callable[..., Backend]:
    """What makes the backend that a plugin registered as `name`.

    Raises:
        ValueError: there is none; the message names those that there are, and plugins that are broken.
    """
    names = ", ".join((*BUILT_IN, *_loaded().backends))
    plugin, factory = _find("backends", name.upper(), f"backend_type is {name!r}, expected one of {names}.")

    def make(*args: Any, **kwargs: Any) -> Backend:
        from cstorch.backends.base import Backend

        try:
            made = factory(*args, **kwargs)
        except Exception as error:
            raise PluginError(f"{plugin} could not make the backend {name!r} ({words(error)}).") from error
        if not isinstance(made, Backend):
            raise PluginError(f"{plugin} made a {type(made).__name__} for {name!r}, expected a cstorch.Backend.")
        return made

    return make


def activity(name: str) -> type:
    """The activity class that a plugin registered as `name`, or the one of cstorch's own.

    Raises:
        ValueError: there is none; the message names those that there are, and plugins that are broken.
    """
    from cstorch.utils.process_activities import ACTIVITIES

    registered = _loaded().activities
    if name in ACTIVITIES and name not in registered:
        return ACTIVITIES[name]
    names = ", ".join(dict.fromkeys((*registered, *ACTIVITIES)))
    found: type = _find("activities", name, f"there is no profiler activity {name!r}; registered are: {names}.")[1]
    return found


def owner_of(activity: Any) -> Plugin | None:
    """The plugin that registered the class of an activity; None for one of cstorch or of the program."""
    for owner, kind in _loaded().activities.values() if _host is not None else ():
        if kind is type(activity):
            return _loaded().plugins[owner]
    return None


def passes() -> builtins.list[Implementation]:
    """The graph passes of plugins, in order."""
    host = _loaded()
    host.warn()
    return [*host.implementations("cstorch_transform_graph")]


def leave_out(plugin: Plugin, problem: str) -> None:
    """Stop calling the hooks of a plugin whose hook failed, with one warning."""
    host = _loaded()
    host.note(plugin, problem)
    host.warn()


def connect_appliance(mgmt_address: str, cluster_config: Any) -> Appliance | None:
    """The appliance of the first plugin that knows `mgmt_address`; None when none does.

    Raises:
        PluginError: a plugin failed to connect or returned something else, and no other one knows the address.
    """
    from cstorch.appliance import Appliance

    host = _loaded()
    failures: builtins.list[tuple[Plugin, str, Exception | None]] = []
    for connect in host.implementations("cstorch_connect_appliance"):
        try:
            made = connect(mgmt_address=mgmt_address, cluster_config=cluster_config)
        except Exception as error:
            failures.append((connect.plugin, words(error), error))
            continue
        if isinstance(made, Appliance):
            for failed, problem, _ in failures:
                host.note(failed, f"it raised when asked for {mgmt_address!r} ({problem})")
            host.warn()
            return made
        if made is not None:
            failures.append(
                (connect.plugin, f"it returned a {type(made).__name__}, expected a cstorch Appliance", None)
            )
    for failed, problem, cause in failures:
        raise PluginError(f"{failed} could not connect to {mgmt_address!r}: {problem}.") from cause
    return None
