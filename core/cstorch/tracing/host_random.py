"""Random numbers that a step draws in Python, with `random` or numpy: drawn anew before each run, or named.

While a step is traced, the functions of both modules and the generators that the step can reach are watched. A number
that is drawn is a host scalar: `lam = np.random.beta(1, 1)` is data of the program, `if random.random() < 0.5` chooses
between programs. What is drawn beside numbers (arrays, samples) and what is drawn unseen is named in a warning.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cstorch.tracing.host_tables import HostTables
from cstorch.tracing.nest import number_of
from cstorch.tracing.scalars import make_scalar, plain_number
from cstorch.tracing.surroundings import Holder
from cstorch.where import user_line

_FUNCTIONS = (
    "random", "uniform", "triangular", "randint", "randrange", "choice", "choices", "sample", "shuffle", "gauss",
    "normalvariate", "lognormvariate", "expovariate", "vonmisesvariate", "gammavariate", "betavariate",
    "paretovariate", "weibullvariate", "binomialvariate", "getrandbits", "randbytes",
)  # fmt: skip
_NO_DRAWS = frozenset({"seed", "get_state", "set_state", "get_bit_generator", "set_bit_generator", "spawn"})
_CHOICES = (bool, str, type(None))


class Source:
    """A generator of random numbers of the host.

    Args:
        name: What messages call it.
        get: Its state.
        put: Sets its state.
    """

    def __init__(self, name: str, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        self.name, self.get, self.put = name, get, put
        self.known = self._now()

    def _now(self) -> bytes:
        return pickle.dumps(self.get())

    @property
    def moved(self) -> bool:
        """Whether it has drawn since `settle`."""
        return self._now() != self.known

    def settle(self) -> None:
        """All draws so far are accounted for."""
        self.known = self._now()


class HostRandom:
    """The draws in Python of one trace.

    Args:
        tables: The host's part of the trace.
    """

    def __init__(self, tables: HostTables) -> None:
        self._tables = tables
        self._scope, self._host = tables.recorder.scalars, tables.recorder.scalars.host
        self._sources: dict[int, tuple[Any, Source]] = {}
        self._within = False
        self._unseen: dict[str, None] = {}
        self._lines: dict[str, dict[str, None]] = {}
        self._numpy = sys.modules.get("numpy.random")
        self._add(random, Source("random", random.getstate, random.setstate))
        if self._numpy is not None:
            legacy = self._numpy.mtrand._rand
            self._add(legacy, Source("numpy.random", legacy.get_state, legacy.set_state))

    def _add(self, thing: Any, source: Source) -> Source:
        self._sources[id(thing)] = thing, source
        return source

    def _source(self, thing: Any) -> Source:
        known = self._sources.get(id(thing))
        if known is not None:
            return known[1]
        if isinstance(thing, random.Random):
            return self._add(thing, Source("a random.Random", thing.getstate, thing.setstate))
        bits = thing.bit_generator if hasattr(thing, "bit_generator") else thing._bit_generator
        name = f"a numpy.random.{type(thing).__name__}"
        return self._add(thing, Source(name, lambda: bits.state, lambda state: setattr(bits, "state", state)))

    # -- watching ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self, holders: Iterable[Holder]) -> Iterator[None]:
        """Within, draws are noticed.

        Args:
            holders: Where generators may be; one of numpy is replaced by one that shows its draws.
        """
        changed: list[tuple[Any, str, Any]] = []
        for name in _FUNCTIONS:
            if hasattr(random, name):
                changed.append((random, name, getattr(random, name)))
                setattr(random, name, self._watched(random, getattr(random, name)))
        methods = {name: getattr(random.Random, name) for name in _FUNCTIONS if hasattr(random.Random, name)}
        own = {name for name in methods if name in vars(random.Random)}
        for name, method in methods.items():
            setattr(random.Random, name, self._watched_method(method))
        if self._numpy is not None:
            legacy = self._numpy.mtrand._rand
            for name, function in list(vars(self._numpy).items()):
                if getattr(function, "__self__", None) is legacy and name not in _NO_DRAWS:
                    changed.append((self._numpy, name, function))
                    setattr(self._numpy, name, self._watched(legacy, function))
        replaced = [
            (holder, key, value)
            for holder in holders
            for key, value in list(holder.before.items())
            if self._is_of_numpy(value)
        ]
        for holder, key, value in replaced:
            holder.set(key, self.stand_in(value))
        try:
            yield
        finally:
            for holder, key, value in replaced:
                if self._is_of_numpy(holder.items().get(key), derived=True):
                    holder.set(key, value)
            for module, name, function in changed:
                setattr(module, name, function)
            for name, method in methods.items():
                if name in own:
                    setattr(random.Random, name, method)
                else:
                    delattr(random.Random, name)

    def _is_of_numpy(self, value: Any, derived: bool = False) -> bool:
        if self._numpy is None:
            return False
        kinds = self._numpy.Generator, self._numpy.RandomState
        return isinstance(value, kinds) if derived else type(value) in kinds

    def stand_in(self, value: Any) -> Any:
        """For a generator of numpy one that draws the same numbers and shows it; anything else as it is."""
        if not self._is_of_numpy(value):
            return value
        kind = type(value)
        self._source(value)
        drawing = {name: getattr(value, name) for name in dir(kind) if name[0] != "_" and name not in _NO_DRAWS}
        methods = {name: self._watched_in(value, f) for name, f in drawing.items() if callable(f)}
        bits = value.bit_generator if hasattr(value, "bit_generator") else value._bit_generator
        return type(kind.__name__, (kind,), methods)(bits)

    def _watched(self, thing: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.draw(thing, function, args, kwargs)

    def _watched_in(self, thing: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda made, *args, **kwargs: self.draw(thing, function, args, kwargs)

    def _watched_method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def function(generator: Any, *args: Any, **kwargs: Any) -> Any:
            if self._within or generator is getattr(random, "_inst", None):
                return method(generator, *args, **kwargs)
            return self.draw(generator, method.__get__(generator), args, kwargs)

        return function

    def draw(self, thing: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Draw with `function` of the generator `thing`, now and in each later run."""
        if self._within or self._tables.paused:
            return function(*args, **kwargs)
        source = self._source(thing)
        self._check(source)
        self._within = True
        try:
            value = function(*map(plain_number, args), **{k: plain_number(v) for k, v in kwargs.items()})
        finally:
            self._within = False
            source.settle()
        number, choice = number_of(value), isinstance(value, _CHOICES)
        variable = self._host.draw(
            self._tables.call_source(function, args, kwargs), source, is_int=isinstance(number, int)
        )
        if number is not None:
            return make_scalar(self._scope, variable, number)
        if choice and function.__name__ != "shuffle":
            return self._scope.guard(variable, value)
        if function.__name__ != "shuffle":
            self._lines.setdefault(source.name, {})[user_line()] = None
        return value

    def _check(self, source: Source) -> None:
        if source.moved:
            self._unseen[source.name] = None

    def frozen(self) -> dict[str, list[str]]:
        """What the trace has drawn that stays the same in later runs: sources with the lines, where they are known."""
        for _, source in self._sources.values():
            self._check(source)
        names = [*self._lines, *(name for name in self._unseen if name not in self._lines)]
        return {name: list(self._lines.get(name, ())) for name in names}
