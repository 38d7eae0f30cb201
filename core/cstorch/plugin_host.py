"""What is behind `cstorch.plugins`: loads plugins one by one, checks them, and keeps what they register."""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pluggy
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from cstorch import hookspecs
from cstorch.errors import PluginError, words

if TYPE_CHECKING:
    from cstorch.backends.base import Backend

GROUP = "cstorch"
PROJECT = "lightning-cerebras"
BUILT_IN = ("CSX", "CPU", "GPU")


@dataclass(frozen=True)
class Plugin:
    """What is known of one plugin.

    Attributes:
        name: Its name: that of its entry point, or the one it was registered by.
        distribution: The distribution that brings it, with version; empty for one that the program registered.
        hooks: The hooks that it implements.
        problem: Why it was left out, or one of its hooks no longer called; None for a plugin that works.
    """

    name: str
    distribution: str = ""
    hooks: tuple[str, ...] = ()
    problem: str | None = None

    def __str__(self) -> str:
        return f"the plugin {self.name!r}" + (f" of {self.distribution}" if self.distribution else "")


@dataclass(frozen=True)
class Implementation:
    """One plugin's function for a hook; called with all arguments of the hook, it gets those that it takes."""

    plugin: Plugin
    function: Callable[..., Any]
    takes: tuple[str, ...]

    def __call__(self, **arguments: Any) -> Any:
        """Call the function."""
        return self.function(*(arguments[name] for name in self.takes))


class _Registry:
    """What all plugins have registered of one kind, for one of them to add to."""

    kind: str

    def __init__(self, entries: dict[str, tuple[str, Any]], owner: str) -> None:
        self._entries, self._owner = entries, owner

    def _enter(self, name: str, value: Any, built_in: tuple[str, ...], spelled: str) -> None:
        if name in built_in:
            raise PluginError(f"it registers the {self.kind} {spelled!r}, which is built in; choose another name")
        if name in self._entries:
            raise PluginError(
                f"it registers the {self.kind} {name!r}, which the plugin {self._entries[name][0]!r} has registered"
            )
        self._entries[name] = (self._owner, value)


class BackendRegistry(_Registry):
    """Takes the backends of one plugin: the argument of `cstorch_register_backends`."""

    kind = "backend"

    def register(self, name: str, factory: Callable[..., Backend]) -> None:
        """Make `cstorch.backend(name, ...)` call `factory(...)`.

        Args:
            name: The backend's name, valid in any case.
            factory: Makes the backend from the arguments of `cstorch.backend`.

        Raises:
            PluginError: the name is taken or no string, or `factory` cannot be called.
        """
        if not isinstance(name, str) or not name or not callable(factory):
            raise PluginError(f"register({name!r}, {factory!r}): expected a name and a function that makes the backend")
        self._enter(name.upper(), factory, BUILT_IN, name)


class ActivityRegistry(_Registry):
    """Takes the profiler activities of one plugin: the argument of `cstorch_register_profiler_activities`."""

    kind = "activity"

    def register(self, activity: type) -> None:
        """Make the activity known by its `name()`.

        Args:
            activity: A subclass of `cstorch.utils.profiler.Activity`.

        Raises:
            PluginError: the name is taken, or `activity` is no subclass of Activity.
        """
        from cstorch.utils.profiler import Activity, RateTracker

        if not (isinstance(activity, type) and issubclass(activity, Activity)):
            raise PluginError(f"register({activity!r}): expected a subclass of cstorch.utils.profiler.Activity")
        self._enter(activity.name(), activity, (RateTracker.name(),), activity.name())


class Host:
    """The plugins of the process and what they registered."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager("cstorch")
        self.manager.add_hookspecs(hookspecs)
        self.plugins: dict[str, Plugin] = {}
        self.backends: dict[str, tuple[str, Any]] = {}
        self.activities: dict[str, tuple[str, Any]] = {}
        self.unsaid: list[Plugin] = []

    def load_installed(self) -> None:
        """Add the plugins of all installed distributions; what is wrong with one is noted."""
        off = {canonicalize_name(name) for name in os.environ.get("CSTORCH_DISABLE_PLUGINS", "").split(",") if name}
        if off & {"1", "all"}:
            return
        entries = importlib.metadata.entry_points(group=GROUP)
        for entry in sorted(entries, key=lambda e: (e.dist.name if e.dist else "", e.name)):  # the same everywhere
            found = entry.dist
            name = found.name if found is not None else ""
            if off & {canonicalize_name(entry.name), canonicalize_name(name)}:
                continue
            plugin = Plugin(entry.name, f"{name} {found.version}" if found is not None else "")
            try:
                self._check_version(found)
                self.add(plugin, entry.load)
            except PluginError as error:
                if entry.name in self.plugins:  # two of one name: the first stays
                    plugin = replace(plugin, name=f"{entry.name} ({name})")
                self.note(plugin, str(error))

    def _check_version(self, found: importlib.metadata.Distribution | None) -> None:
        """Refuse a plugin that says in its requirements that it is for another version."""
        from cstorch import __version__

        for line in (found.requires if found is not None else None) or ():
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            if canonicalize_name(requirement.name) != PROJECT or (requirement.marker and "extra" in line):
                continue
            if not requirement.specifier.contains(__version__, prereleases=True):
                raise PluginError(
                    f"it requires {PROJECT}{requirement.specifier}, and {__version__} is here; install a version of it "
                    "that fits"
                )

    def add(self, plugin: Plugin, load: Callable[[], Any]) -> None:
        """Load and check a plugin and let it register what it has.

        Raises:
            PluginError: any of this failed; nothing of the plugin is left.
        """
        if plugin.name in self.plugins:
            raise PluginError(f"{self.plugins[plugin.name]} has the same name")
        try:
            loaded = load()
        except (Exception, SystemExit) as error:
            raise PluginError(f"it cannot be imported ({words(error)})") from error
        try:
            self.manager.register(loaded, plugin.name)
            self.plugins[plugin.name] = replace(plugin, hooks=self._hooks_of(loaded))
            for registry, hook in (
                (BackendRegistry(self.backends, plugin.name), "cstorch_register_backends"),
                (ActivityRegistry(self.activities, plugin.name), "cstorch_register_profiler_activities"),
            ):
                for implementation in self.implementations(hook):
                    if implementation.plugin.name == plugin.name:
                        implementation(registry=registry)
        except (Exception, SystemExit) as error:
            self.remove(plugin.name)
            if isinstance(error, PluginError):
                raise
            reason = " ".join(str(error).split()) if isinstance(error, pluggy.PluginValidationError) else words(error)
            raise PluginError(f"it cannot be registered ({reason})") from error

    def _hooks_of(self, loaded: Any) -> tuple[str, ...]:
        callers = self.manager.get_hookcallers(loaded) or ()
        if not callers:
            raise PluginError("it implements no hook; decorate its functions with @cstorch.plugins.hookimpl")
        known = [name for name in vars(hookspecs) if name.startswith("cstorch_")]
        for caller in callers:
            if caller.name not in known:
                raise PluginError(f"it implements {caller.name!r}, which is no hook; the hooks are {', '.join(known)}")
            if any(impl.plugin is loaded and (impl.wrapper or impl.hookwrapper) for impl in caller.get_hookimpls()):
                raise PluginError(f"its {caller.name!r} is a hook wrapper; implement the hook itself")
        return tuple(caller.name for caller in callers)

    def remove(self, name: str) -> None:
        """Forget a plugin and what it registered."""
        self.plugins.pop(name, None)
        if self.manager.has_plugin(name):
            self.manager.unregister(name=name)
        for entries in (self.backends, self.activities):
            for known in [key for key, (owner, _) in entries.items() if owner == name]:
                del entries[known]

    def implementations(self, hook: str) -> Iterator[Implementation]:
        """What plugins that work have for `hook`, in pluggy's order."""
        for impl in reversed(getattr(self.manager.hook, hook).get_hookimpls()):
            plugin = self.plugins[impl.plugin_name]
            if plugin.problem is None:
                yield Implementation(plugin, impl.function, impl.argnames)

    def note(self, plugin: Plugin, problem: str) -> None:
        """Mark a plugin as broken; the next `warn` says so."""
        noted = replace(plugin, problem=problem)
        self.plugins[plugin.name] = noted
        self.unsaid.append(noted)

    def warn(self) -> None:
        """Say, once, which plugins are broken."""
        unsaid, self.unsaid = self.unsaid, []
        for plugin in unsaid:
            warnings.warn(f"{plugin} was left out: {advice(plugin)}", stacklevel=4)


def advice(plugin: Plugin) -> str:
    """What is wrong with a plugin and what to do."""
    if not plugin.distribution:
        return f"{plugin.problem}."
    distribution = plugin.distribution.split(" ")[0]
    return f"{plugin.problem}. Update or uninstall {distribution}, or set CSTORCH_DISABLE_PLUGINS={distribution}."
