"""One system: compiles the programs that the controller sends, holds a replica of their state, and runs them."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import sys
import traceback
import zlib
from pathlib import Path
from typing import Any

import torch

from cstorch.appliance import meeting
from cstorch.appliance.channel import Channel, Message, Order
from cstorch.appliance.group import make_systems_group
from cstorch.appliance.portable import PortableProgram
from cstorch.appliance.wire import Settings
from cstorch.compiler.cache import cache_folder
from cstorch.compiler.interpreter import InterpretedExecutable
from cstorch.compiler.passes import prepare
from cstorch.errors import BackendError
from cstorch.lifeline import end_with_controller
from cstorch.tracing.program import Executable

logger = logging.getLogger("cstorch.systems")


class _Loaded:
    """A program of this system."""

    def __init__(self, portable: PortableProgram, settings: Settings, executable: Executable) -> None:
        self.portable, self.settings, self.executable = portable, settings, executable
        self.state: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []


class System:
    """Does what the controller says until it says the end.

    Args:
        channel: The way to the controller.
        rank: The rank of this system.
        compile_dir: The folder of the compile cache.
    """

    def __init__(self, channel: Channel, rank: int, compile_dir: Path) -> None:
        self._channel, self._rank, self._folder = channel, rank, compile_dir
        self._programs: dict[int, _Loaded] = {}
        self._memory: dict[int, torch.UntypedStorage] = {}
        self._used: _Loaded | None = None

    def serve(self) -> None:
        """Do what comes."""
        channel = self._channel
        while True:
            message = channel.message
            channel.receive(message.whole)
            order, number, seed = message.numbers[:3].tolist()
            if order == Order.RUN:
                self._run(message, number, seed)
            elif order == Order.COMMAND:
                name, args = channel.commanded()
                getattr(self, f"_{name}")(*args)
            else:
                return

    def _run(self, message: Message, draws: int, seed: int) -> None:
        program = self._used
        assert program is not None
        if draws:
            torch.manual_seed(seed)
        program.outputs = program.executable([*program.state, *message.inputs])

    # -- commands ----------------------------------------------------------------------------------------

    def _load(self, number: int, data: bytes, settings: Settings) -> None:
        try:
            portable: PortableProgram = pickle.loads(data)
            settings.apply()
            if settings.interpret:
                executable: Executable = InterpretedExecutable(prepare(portable.graph))
            else:
                executable = portable.load(self._folder)
                if isinstance(executable, InterpretedExecutable):
                    raise BackendError("it cannot compile the program that the controller has compiled")
            self._programs[number] = _Loaded(portable, settings, executable)
            problem = None
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        self._channel.answer(problem)

    def _use(self, number: int) -> None:
        self._used = self._programs[number]
        self._used.settings.apply()
        portable = self._used.portable
        self._channel.use(portable.layouts[portable.state :])

    def _bind(self, number: int, freed: list[int], adopted: list[Any], pushed: list[Any], state: list[Any]) -> None:
        """Take the memory of the state of a program: from an output of an earlier run, or from the controller."""
        for known in freed:
            self._memory.pop(known, None)
        for key, program, output in adopted:
            self._memory[key] = self._programs[program].outputs[output].untyped_storage()
        for key, nbytes in pushed:
            if key not in self._memory or self._memory[key].nbytes() != nbytes:
                self._memory[key] = torch.empty(nbytes, dtype=torch.uint8).untyped_storage()
            if nbytes:
                self._channel.receive(_bytes(self._memory[key]))
        self._programs[number].state = [
            torch.empty(0, dtype=dtype).set_(self._memory[key], offset, shape, stride)
            for key, dtype, offset, shape, stride in state
        ]

    def _check(self, keys: list[int]) -> None:
        self._channel.answer([checksum(self._memory[key]) for key in keys])


def _bytes(memory: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(memory)


def checksum(memory: torch.UntypedStorage) -> int:
    """The checksum of all bytes of `memory`."""
    return zlib.crc32(_bytes(memory).numpy().data) if memory.nbytes() else 0


def serve(store: Any, rank: int, size: int, host: str | None, secret: bytes | None, options: dict[str, Any]) -> None:
    """Be system `rank` of a run until the controller ends it.

    Args:
        store: Where the run meets.
        rank: The rank of this process, above 0.
        size: Processes of the run.
        host: The address to bind sockets to.
        secret: What must be known to be let in.
        options: See `cstorch.appliance.group.options_now`.

    Raises:
        BackendError: the controller does not come or let this system in.
        RuntimeError: the controller or another system has died, or hangs.
    """
    meeting.enter(store, rank, secret, options["start_timeout"])
    group = make_systems_group(store, rank, size, host, options, lambda: None)
    folder = cache_folder(options["compile_dir"])
    try:
        System(Channel(group, 0), rank, folder).serve()
    except BaseException:
        text = traceback.format_exc()
        store.set(f"failure/{rank}", text)
        raise


def main() -> None:
    """Be a system that a controller on this host has started; its standard input is open as long as that lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    options = json.loads(sys.argv[1])
    lifeline = end_with_controller(sys.stdin.fileno(), Path(options["folder"]))
    store = meeting.local_store(Path(options["folder"]), options["size"])
    try:
        serve(store, options["rank"], options["size"], meeting.LOOPBACK, None, options)
    except Exception as error:
        lifeline.join(0.3)  # a connection that breaks is often the first sign of the controller's end
        if os.getppid() == options["parent"]:
            logger.error("system %d: %s: %s", options["rank"], type(error).__name__, error)
        os._exit(1)
    os._exit(0)  # threads of gloo have nothing left to do
