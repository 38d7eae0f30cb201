"""The appliance of several systems: this process is the controller and system 0, the others run beside or elsewhere.

At each step the controller sends every system its part of the batch, and all run the same program. The collectives in
it leave the same state and the same outputs everywhere, so nothing is fetched; what the host has written to the state
since the last run is sent before the next one.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cstorch._torch_private.collectives import is_connection_error, unregister_group
from cstorch.appliance import meeting
from cstorch.appliance.base import Appliance
from cstorch.appliance.channel import Channel, Order
from cstorch.appliance.group import make_systems_group, options_now
from cstorch.appliance.launch import LocalSystems
from cstorch.appliance.portable import PortableProgram
from cstorch.appliance.replay import Run, RunLog, copies
from cstorch.appliance.state import Change, StateTable
from cstorch.appliance.system import checksum
from cstorch.appliance.wire import Settings
from cstorch.compiler.collectives import GROUP
from cstorch.compiler.compile import compile_program
from cstorch.compiler.interpreter import InterpretedExecutable
from cstorch.errors import BackendError
from cstorch.tracing.context import context
from cstorch.tracing.data_parallel import part
from cstorch.tracing.program import Executable, Program

logger = logging.getLogger("cstorch.systems")

_GRACE = 5.0  # seconds until a process that has died is reported by the system


class _Loaded:
    """A program on all systems."""

    def __init__(self, number: int, program: Program, example: list[torch.Tensor], executable: Executable) -> None:
        self.number, self.executable = number, executable
        self.state = len(program.state)
        self.parts = {self.state + i for i, position in enumerate(program.leaves) if position in program.parts}
        self.portable = PortableProgram.of(program, example)
        self.settings = Settings.now(isinstance(executable, InterpretedExecutable))


class _SystemsExecutable:
    """Runs one program on all systems."""

    def __init__(self, appliance: SystemsAppliance, loaded: _Loaded) -> None:
        self._appliance, self._loaded = appliance, loaded

    @property
    def runs(self) -> int:
        """How often it has run, counted on every system."""
        return self._appliance.count * int(self._loaded.executable.runs)  # type: ignore[attr-defined]

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run it once."""
        return self._appliance._run(self._loaded, inputs)


class SystemsAppliance(Appliance):
    """Runs programs on several systems, each with its part of the batch.

    Args:
        count: Systems, this process included.
        secret: What systems must know to be let in.
        compile_dir: The folder of the compile cache of systems that are started here.
        python_paths: Folders that come first on their import path.
        restarts: How often they are started again after one has died or hung.
        store: Makes the store where systems meet that start by themselves; None to start them here.
        host: The address to bind sockets to.
    """

    divides_batches = True

    def __init__(
        self,
        count: int,
        secret: bytes | None = None,
        compile_dir: str | os.PathLike[str] | None = None,
        python_paths: list[Any] | None = None,
        restarts: int = 0,
        store: Callable[[], Any] | None = None,
        host: str | None = meeting.LOOPBACK,
    ) -> None:
        self.count = count
        self._secret, self._python_paths, self._make_store, self._host = secret, python_paths, store, host
        self._restarts = restarts if store is None else 0
        self._options = options_now(compile_dir)
        self._programs: list[_Loaded] = []
        self._state = StateTable()
        self._log = RunLog()
        self._channels: list[Channel] = []
        self._sent: list[Any] = []
        self._used = -1
        self._store: Any = None
        self._group: Any = None
        self._local: LocalSystems | None = None
        self._lost: str | None = None
        self._threads = torch.get_num_threads()
        if store is None:  # they share the processors of this host
            torch.set_num_threads(max(1, self._threads // count))
            self._launch()

    @property
    def pids(self) -> list[int]:
        """The process ids of the systems that were started here, by rank from 1."""
        return [] if self._local is None else self._local.pids

    # -- the systems come and go -------------------------------------------------------------------------

    def _launch(self) -> None:
        self._local = LocalSystems(self.count, self._python_paths, self._options)

    def _connect(self) -> None:
        """Wait for all systems, and form the group."""
        if self._lost is not None:
            raise BackendError(f"{self._lost} End this backend with close() and make another one.")
        if self._group is not None:
            return
        if self._local is not None:
            self._store = meeting.local_store(self._local.folder, self.count)
        elif self._store is None:
            assert self._make_store is not None
            self._store = self._make_store()
            self._store.set("size", str(self.count))
        meeting.admit(self._store, self.count, self._secret, self._options["start_timeout"], self._refuse_ended)
        self._group = make_systems_group(self._store, 0, self.count, self._host, self._options, self._refuse_ended)
        self._channels = [Channel(self._group, rank) for rank in range(1, self.count)]

    def _refuse_ended(self) -> None:
        ended = {} if self._local is None else self._local.ended()
        for rank, how in ended.items():
            raise BackendError(
                f"system {rank} {how} before the run began. What it has printed says why; a system needs what this "
                "process needs: the same Python, and memory for a replica of the state."
            )

    def _disconnect(self) -> None:
        if self._group is not None:
            unregister_group(GROUP)
        self._channels, self._sent, self._group, self._used = [], [], None, -1
        if self._local is not None:
            self._local.close()
            self._local = self._store = None

    def close(self) -> None:
        """End the systems. Those that hang are killed."""
        if self._lost is None and self._group is not None:
            try:
                self._finish_sending()
                for channel in self._channels:
                    channel.message.numbers[0] = Order.END
                    channel.send(channel.message.whole).wait()
            except RuntimeError:  # one has died: there is nothing to tell it
                pass
        self._disconnect()
        self._store = None
        self._lost = "the backend was closed."
        torch.set_num_threads(self._threads)

    # -- programs ----------------------------------------------------------------------------------------

    def load(self, program: Program, example: list[torch.Tensor], compile_dir: Path) -> Executable:
        """Compile `program` here, then on all systems."""
        self._connect()
        executable = compile_program(program, example, compile_dir)
        before = torch.get_rng_state()
        loaded = _Loaded(len(self._programs), program, example, executable)
        self._programs.append(loaded)
        try:
            self._ship(loaded)
        except RuntimeError as error:
            if isinstance(error, BackendError):
                raise
            self._recover(error)
            torch.set_rng_state(before)
        return _SystemsExecutable(self, loaded)

    def _ship(self, loaded: _Loaded) -> None:
        self._finish_sending()
        data = pickle.dumps(loaded.portable)  # as bytes: a system says what is wrong when it cannot read them
        for channel in self._channels:
            channel.command("load", loaded.number, data, loaded.settings)
        for channel in self._channels:
            problem = channel.answered()
            if problem is not None:
                self._lose(f"system {channel.peer} could not load the program {loaded.portable.name!r}: {problem}")
                raise BackendError(self._lost)

    # -- runs --------------------------------------------------------------------------------------------

    def _run(self, loaded: _Loaded, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        state, arguments = inputs[: loaded.state], inputs[loaded.state :]
        try:
            self._connect()
            change = self._state.change(loaded.number, state)
            if self._restarts:
                generator = torch.get_rng_state() if loaded.portable.draws else None
                run = Run(loaded.number, state, copies(arguments), generator)
                self._log.add(run, self._state.memories.values(), change is not None)
            self._tell(loaded, change)
            return self._step(loaded, state, arguments)
        except RuntimeError as error:
            if isinstance(error, BackendError):
                raise
            outputs = self._recover(error)
            assert outputs is not None
            return outputs
        except BaseException:  # between two collectives: the systems wait for what will not come
            self._lose("a step was interrupted, so the systems have been ended.")
            raise

    def _tell(self, loaded: _Loaded, change: Change | None) -> None:
        """Bring the systems up to what the host has done to the state."""
        if change is None and self._used == loaded.number:
            return
        self._finish_sending()
        for channel in self._channels:
            if change is not None:
                pushed = [(m.key, m.storage.nbytes()) for m in change.pushed]
                channel.command("bind", loaded.number, change.freed, change.adopted, pushed, change.state)
                for memory in change.pushed:
                    if memory.storage.nbytes():
                        whole = torch.empty(0, dtype=torch.uint8)
                        channel.send(whole.set_(memory.storage)).wait()
            if self._used != loaded.number:
                channel.command("use", loaded.number)
                channel.use(loaded.portable.layouts[loaded.state :])
        self._used = loaded.number

    def _step(self, loaded: _Loaded, state: list[torch.Tensor], arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        draws = loaded.portable.draws
        seed = int(torch.randint(2**62, ())) if draws else 0
        self._finish_sending()
        own = list(arguments)
        for i, argument in enumerate(arguments):
            divided = loaded.state + i in loaded.parts
            if divided:
                own[i] = part(argument, 0, self.count)
            for channel in self._channels:
                theirs = part(argument, channel.peer, self.count) if divided else argument
                channel.message.inputs[i].copy_(theirs)
        for channel in self._channels:
            # every system has a stream of its own, which follows the host's
            channel.message.numbers[:3] = (
                Order.RUN,
                loaded.portable.draws,
                (seed + channel.peer * 0x9E3779B97F4A7C15) % 2**62,
            )
            self._sent.append(channel.send(channel.message.whole))
        outputs = loaded.executable([*state, *own])
        self._state.ran(loaded.number, outputs)
        return outputs

    def _finish_sending(self) -> None:
        """Messages may be written again."""
        for work in self._sent:
            work.wait()
        self._sent.clear()

    # -- failures ----------------------------------------------------------------------------------------

    def _lose(self, why: str) -> None:
        self._lost = why
        self._disconnect()

    def _recover(self, error: RuntimeError) -> list[torch.Tensor] | None:
        """After a failed run or load: start the systems again and repeat the runs since the last copy of the state.

        Returns:
            The outputs of the last of them.
        """
        numbers = torch.get_rng_state()
        while True:
            why = self._why(error)
            if why is None:  # of the program itself
                self._lose("a step has failed, so the systems have been ended.")
                raise error
            if self._restarts == 0:
                saved = context.last_checkpoint or "none was saved in this process"
                self._lose(f"{why} The last checkpoint: {saved}.")
                raise BackendError(f"{self._lost}{self._advice()}") from error
            self._restarts -= 1
            logger.warning("%s The systems are started again.", why)
            self._disconnect()
            self._state.forget()
            try:
                self._launch()
                self._connect()
                for loaded in self._programs:
                    self._ship(loaded)
                return self._repeat(numbers)
            except RuntimeError as again:
                if isinstance(again, BackendError):
                    raise
                error = again

    def _repeat(self, numbers: torch.Tensor) -> list[torch.Tensor] | None:
        outputs = None
        self._log.restore()
        for run in self._log.runs:
            loaded = self._programs[run.program]
            self._tell(loaded, self._state.change(run.program, run.state))
            if run.generator is not None:
                torch.set_rng_state(run.generator)
            outputs = self._step(loaded, run.state, run.arguments)
        if not self._log.runs or self._log.runs[-1].generator is None:
            torch.set_rng_state(numbers)
        return outputs

    def _why(self, error: RuntimeError) -> str | None:
        """Which system has failed, and how; None when it was none."""
        text = str(error)
        if not is_connection_error(error):
            return None
        hung = "imed out" in text
        if self._local is not None:
            ended = self._local.ended(_GRACE)
            if hung:  # the others give up as this process does: who has not is the one that hangs
                time.sleep(1.0)
                ended = self._local.ended()
            killed = {rank: how for rank, how in ended.items() if "killed" in how} or ended
            alive = [rank for rank in range(1, self.count) if rank not in ended]
            if hung and alive and "killed" not in str(killed):
                return (
                    f"system {', '.join(map(str, alive))} has kept the others waiting for "
                    f"{self._options['timeout']:g} seconds in step {self._step_number()}: it hangs."
                )
            for rank, how in killed.items():
                said = self._said(rank)
                return f"system {rank} {how} in step {self._step_number()}.{said}"
            return f"the connection to a system broke in step {self._step_number()}: {text.splitlines()[0]}"
        ranks = [rank for rank in range(1, self.count) if self._said(rank)]
        if hung:
            return f"a system has kept the others waiting for {self._options['timeout']:g} seconds: it hangs. ({text})"
        said = "".join(f" System {rank}:{self._said(rank)}" for rank in ranks)
        return f"a system on another host or started by torchrun is gone in step {self._step_number()} ({text}).{said}"

    def _step_number(self) -> str:
        return "0" if context.executor is None else str(context.executor.iteration)

    def _said(self, rank: int) -> str:
        """The last line of what a system has said of its failure."""
        try:
            if self._store.check([f"failure/{rank}"]):
                return f" {self._store.get(f'failure/{rank}').decode().strip().splitlines()[-1]}"
        except RuntimeError:  # the store is gone as well
            pass
        return ""

    def _advice(self) -> str:
        if self._make_store is not None:
            return " Start the run again, with torchrun --max-restarts, and go on from it."
        return (
            " Go on from it, or raise ClusterConfig.restart_attempts. A system that is killed is often out of memory."
        )

    # -- checkpoints -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare the state on all systems.

        Raises:
            BackendError: it is not the same.
        """
        if self._group is None:
            return
        self._finish_sending()
        memories = self._state.unwritten()
        for channel in self._channels:
            channel.command("check", [m.key for m in memories])
        mine = [checksum(m.storage) for m in memories]
        for channel in self._channels:
            for memory, own, theirs in zip(memories, mine, channel.answered(), strict=True):
                if own != theirs:
                    shapes = ", ".join(str(tuple(b.tensor.shape)) for b in memory.tensors)
                    raise BackendError(
                        f"system {channel.peer} has another value than system 0 in a state tensor of shape {shapes}. "
                        "Systems must compute alike: use processors of one kind, and write to state in ways that "
                        "PyTorch notices (tensor.copy_, not through numpy). The checkpoint was not written."
                    )
