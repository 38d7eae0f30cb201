"""The flags of the CSX backend, in groups: `cstorch.backends.csx.debug.retrace_every_iteration = True`.

A flag is checked when it is assigned, so that a misspelt name or a wrong value is an error at that line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        default: Its value at the start of the process.
        accepts: Whether a value is valid.
        expected: What is valid, in words.
    """

    default: Any
    accepts: Callable[[Any], bool]
    expected: str


def boolean(default: bool) -> Flag:
    """A flag that is True or False."""
    return Flag(default, lambda value: isinstance(value, bool), "True or False")


def positive(default: float) -> Flag:
    """A flag that is a number above 0."""
    return Flag(
        default,
        lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0,
        "a number above 0",
    )


def optional_memory() -> Flag:
    """A flag that is a number of GiB, or None for no limit."""
    number = positive(1.0)
    return Flag(None, lambda value: value is None or number.accepts(value), "None or a number of GiB above 0")


def names_of_rules() -> Flag:
    """A flag that is a tuple or list of names of the rules in cstorch.constraints."""

    def accepts(value: Any) -> bool:
        from cstorch.constraints.rule import RULES

        return isinstance(value, (tuple, list)) and all(isinstance(name, str) and name in RULES for name in value)

    return Flag((), accepts, "a tuple of names of rules, which are in cstorch.constraints.RULES")


def arguments() -> Flag:
    """A flag that is a mapping of names to values, or None."""
    return Flag(
        None,
        lambda value: value is None or (isinstance(value, dict) and all(isinstance(key, str) for key in value)),
        "None or a dict of names to values",
    )


def anything() -> Flag:
    """A flag of a cluster, which has no effect here; None by default."""
    return Flag(None, lambda value: True, "anything")


def micro_batches() -> Flag:
    """The flag `performance.micro_batch_size`."""

    def is_size(value: Any) -> bool:
        return type(value) is int and value > 0

    def accepts(value: Any) -> bool:
        if isinstance(value, dict):
            bounds = value.get("explore")
            return (
                list(value) == ["explore"]
                and isinstance(bounds, dict)
                and set(bounds) <= {"min", "max"}
                and all(bound is None or is_size(bound) for bound in bounds.values())
                and (bounds.get("min") or 1) <= (bounds.get("max") or math.inf)
            )
        return value is None or is_size(value) or value in ("auto", "explore")

    expected = 'None, a whole number above 0, "auto", "explore" or {"explore": {"min": a number, "max": a number}}'
    return Flag("auto", accepts, expected)


class Default:
    """`backends.DEFAULT`: assigned to a flag it gives it its default."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default()


class FlagGroup:
    """Flags that belong together, read and assigned as attributes.

    Args:
        name: The group's name, for messages.
        flags: The flags by name.
    """

    _name: str
    _flags: dict[str, Flag]

    def __init__(self, name: str, flags: dict[str, Flag]) -> None:
        self.__dict__.update(_name=name, _flags=flags, **{key: flag.default for key, flag in flags.items()})

    def __getattr__(self, key: str) -> Any:
        raise AttributeError(f"{self._name} has no flag {key!r}; it has {', '.join(self._flags)}.")

    def __setattr__(self, key: str, value: Any) -> None:
        flag = self._flags.get(key)
        if flag is None:
            raise AttributeError(f"{self._name} has no flag {key!r}; it has {', '.join(self._flags)}.")
        if value is DEFAULT:
            value = flag.default
        if not flag.accepts(value):
            raise ValueError(f"{self._name}.{key} was set to {value!r}, expected {flag.expected}.")
        self.__dict__[key] = value

    def __delattr__(self, key: str) -> None:
        setattr(self, key, DEFAULT)

    def __dir__(self) -> list[str]:
        return list(self._flags)

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(f'{key}={self.__dict__[key]!r}' for key in self._flags)})"


debug = FlagGroup(
    "csx.debug",
    {
        "retrace_every_iteration": boolean(False),
        "lazy_initialization": boolean(True),
        "debug_args": arguments(),
        "ini": arguments(),
        "check_constraints": boolean(False),
        "silenced_constraints": names_of_rules(),
        "wrk_memory_gi": optional_memory(),
        "act_memory_gi": optional_memory(),
        "wgt_memory_gi": optional_memory(),
        "execute_crd_memory_gi": optional_memory(),
        "compile_crd_memory_gi": optional_memory(),
        "cmd_memory_gi": optional_memory(),
        "chf_memory_gi": optional_memory(),
        "drop_data": boolean(False),
        "skip_weight_init": boolean(False),
        "log_initialization": boolean(False),
        "save_gpv": boolean(False),
        "fabric_type_blacklist": anything(),
        "implicit_cast_cb16_to_fp32": boolean(False),
    },
)
"""Flags for debugging.

check_constraints: raise ConstraintError where a traced step does what the real system is publicly known to refuse.
silenced_constraints: names of rules in `cstorch.constraints.RULES` that are not checked; ours, beyond the reference.
retrace_every_iteration: run the Python of traced steps at every call, and raise where its graph has changed.
lazy_initialization: a model built within `backend.device` gets its memory and first values when they are first needed;
    False: at once. The values are the same.
debug_args, ini: no effect here: they are for the debugging of a cluster.
wrk_memory_gi: so many GiB each input worker may allocate; it is then a process of its own even where there is but one.
act_memory_gi, wgt_memory_gi, execute_crd_memory_gi: so many GiB may activations and gradients, the state (parameters
    and optimizer state), and all of it with the inputs take. A program whose compile report estimates more is an error
    before it is compiled or run. Estimates count every value from its operation to its last use; compiled programs
    take less.
compile_crd_memory_gi: so many GiB may this process have taken at most when a program has been compiled, and its C++
    compiler too; more is an error before the program runs. A program from the cache is not compiled, so not checked.
cmd_memory_gi, chf_memory_gi, fabric_type_blacklist: no effect here: there are no command hosts and no fabric.
implicit_cast_cb16_to_fp32: no effect here: nothing is stored as cbfloat16.
drop_data, skip_weight_init, log_initialization, save_gpv: no effect here: models that are only compiled or validated
    take no memory for their weights anyway.
"""

precision = FlagGroup(
    "csx.precision",
    {
        "optimization_level": Flag(
            1, lambda value: type(value) is int and 0 <= value < 3, "a whole number from 0 to 2"
        ),
    },
)
"""Flags for the precision of a step's arithmetic. A step that was traced at another level is traced again.

optimization_level: 0: float32 in the order of eager PyTorch: compiled programs keep the bias within its matrix product,
    and Inductor replaces no pattern of operations by another. 1: these rewrites are made; they change the order of
    additions, not the precision. 2: float32 inputs of matrix products, convolutions and attention, forward and
    backward, are rounded to bfloat16; products are added up and returned in float32. Not rounded are a bias, what an
    optimizer multiplies, products within `nn.RNN`, `GRU`, `LSTM` and `cdist`, and forward ones within
    `cstorch.pol(level=0)`. Level 2 changes numbers only: values are rounded and then multiplied in float32, so that it
    saves neither time nor memory here. What the program asks of PyTorch itself (autocast,
    torch.set_float32_matmul_precision, TF32 on a GPU) goes on top at every level.
"""

data = FlagGroup(
    "csx.data",
    {
        "worker_timeout": positive(600.0),
    },
)
"""Flags of the input workers; ours, beyond the specification.

worker_timeout: so many seconds may pass without a batch before a worker counts as hung.
"""

systems = FlagGroup(
    "csx.systems",
    {
        "timeout": positive(600.0),
        "start_timeout": positive(300.0),
        "host_memory": boolean(True),
    },
)
"""Flags of runs on several systems (`ClusterConfig(num_csx=...)`); ours, beyond the specification.

timeout: so many seconds may a system keep the others waiting within a step before it counts as hung.
start_timeout: so many seconds may pass until all systems are there.
host_memory: systems that are all on one host exchange gradients through memory that all have mapped, where a C++
    compiler is there. False: over sockets, as between hosts.
"""

cache = FlagGroup(
    "csx.cache",
    {
        "limit_gi": positive(10.0),
    },
)
"""Flags of the compile cache; ours, beyond the specification.

limit_gi: so many GiB may all compiled programs in a compile_dir have; those that were not used for longest are removed
    when a new one has been compiled.
"""

cluster = FlagGroup("csx.cluster", {"auto_taint": anything()})
"""Flags of a cluster, beyond the specification. auto_taint: no effect here: no machine is set aside."""


class storage:  # noqa: N801  a group of groups
    """Flags of where checkpoints lie, beyond the specification."""

    s3 = FlagGroup("csx.storage.s3", {"profile": Flag(None, lambda value: value is None, "None: there is no S3 here")})
    """profile: of the credentials for S3. Only None: checkpoints are files; name a profile to what copies them."""


performance = FlagGroup(
    "csx.performance",
    {
        "micro_batch_size": micro_batches(),
        "start_interpreted": boolean(False),
        "transfer_processes": Flag(
            5, lambda value: type(value) is int and value > 0, "a whole number of processes above 0"
        ),
        "use_speculative_optimizers": boolean(True),
        "max_transfer_bytes": anything(),
        "compress_weights": boolean(False),
    },
)
"""Flags for speed.

micro_batch_size: so many samples at a time go through forward and backward, so that fewer activations are there at
    once; gradients are added up, and the optimizer runs once for the batch. The batch is that of one system. Results
    are those of the whole batch to rounding, random numbers too: they are drawn for the whole batch. An int: that size;
    it must divide the batch, and programs of smaller batches run whole. A program whose result would be another one
    (batch norm in train mode, a loss that compares samples) is a MicroBatchError that names the operator and the line.
    "auto": programs run whole, but one that is above a limit of `debug.act_memory_gi` or `execute_crd_memory_gi` runs
    in the largest micro-batches that keep it, if it can. "explore", or {"explore": {"min": ..., "max": ...}} within
    bounds: every size that divides the batch is compiled and timed on copies of the first inputs, the times are logged
    and in the report, and the fastest runs; where nothing is executed, or on several systems, programs run whole.
    None: programs run whole. A step that was traced under another value is traced again.
start_interpreted: steps run interpreted at once, while a process in the background compiles them, and go on compiled as
    soon as it is done. Ours, beyond the specification; off by default, since random numbers and the last bits of
    results change at a step that depends on the clock.
transfer_processes, max_transfer_bytes, compress_weights: no effect here: host and programs share memory, so nothing is
    transferred.
use_speculative_optimizers: no effect here: the update of the weights is part of the program and never waits.
"""
