"""The appliance: systems placed by a Ray placement group, which Ray watches and restarts."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import ray
import torch
from cstorch.appliance import Appliance, PortableProgram
from cstorch.distributed import ClusterConfig
from cstorch.errors import BackendError, words
from cstorch.tracing.program import Executable, Program
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cstorch_ray.system import System

logger = logging.getLogger("cstorch.ray")

CPUS = 1
"""Processors of each system."""

PASSED_ON = ("CSTORCH_INTERPRET", "CXX", "OMP_NUM_THREADS", "PYTHONPATH")
"""Variables of the environment that the systems get as they are here."""


class RayAppliance(Appliance):
    """Runs programs on Ray actors.

    Each program lives on one system; several programs, such as training and evaluation, are dealt out in turn. At
    each step the state travels to the system and back, so the host's tensors are always current, and a system that
    dies loses nothing: Ray starts it anew and the step is run again.

    Args:
        mgmt_address: `ray://local` for a Ray of this machine's own, `ray://auto` for the cluster that this machine
            belongs to, `ray://host:port` for a Ray client server. A Ray that the program has initialised is used in
            any case.
        cluster_config: `num_csx` systems; `python_paths` are added to theirs. `restart_attempts`, 1 where it is not
            set, says how often Ray may start each anew.

    Raises:
        BackendError: the cluster has no room for the systems.
        ConnectionError: there is no Ray at the address.
    """

    ROOM = 30.0
    """Seconds to wait for the systems to be placed."""

    def __init__(self, mgmt_address: str, cluster_config: ClusterConfig) -> None:
        self._address, self._programs = mgmt_address, 0
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            _connect(mgmt_address, cluster_config.num_csx)
        count = cluster_config.num_csx
        self._group = placement_group([{"CPU": CPUS}] * count, strategy="SPREAD")
        try:
            ray.get(self._group.ready(), timeout=self.ROOM)
        except ray.exceptions.GetTimeoutError as error:
            there = ray.cluster_resources().get("CPU", 0)
            self.close()
            raise BackendError(
                f"the Ray at {mgmt_address!r} has had no room for num_csx={count} systems of {CPUS} processor each for "
                f"{self.ROOM:.0f} s; it has {there:.0f} in all. Use a smaller num_csx, or end what occupies them."
            ) from error
        variables = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        if cluster_config.python_paths:
            before = [variables["PYTHONPATH"]] if "PYTHONPATH" in variables else []
            variables["PYTHONPATH"] = os.pathsep.join([*map(str, cluster_config.python_paths), *before])
        actor = ray.remote(System)
        self.systems: list[Any] = [
            actor.options(
                num_cpus=CPUS,
                max_restarts=getattr(cluster_config, "restart_attempts", 1),
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, place),
                runtime_env={"env_vars": variables},
            ).remote(CPUS)
            for place in range(count)
        ]

    def load(self, program: Program, example: list[torch.Tensor], compile_dir: Path) -> Executable:
        """Compile `program` on the system whose turn it is."""
        place = self._programs % len(self.systems)
        self._programs += 1
        portable = PortableProgram.of(program, example)
        loaded = RemoteExecutable(self, place, self._programs, portable, str(compile_dir))
        loaded.load()
        return loaded

    def call(self, place: int, method: str, *arguments: Any) -> Any:
        """Call a method of a system and wait for what it returns.

        Raises:
            BackendError: the system died and may not be started anew, or the method raised.
            ActorUnavailableError, ActorDiedError: the system died and Ray starts it anew.
        """
        try:
            return ray.get(getattr(self.systems[place], method).remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            raise BackendError(f"system {place} of {self._address!r} failed: {words(error.cause)}") from error

    def close(self) -> None:
        """End the systems, and Ray if it was started or connected to here."""
        for system in getattr(self, "systems", ()):
            ray.kill(system)
        remove_placement_group(self._group)
        if self._owns_ray:
            ray.shutdown()


class RemoteExecutable:
    """Runs one program on its system.

    Args:
        appliance: The appliance.
        place: Which system.
        number: The program's number.
        program: The program.
        compile_dir: The folder of the compile cache, there.
    """

    def __init__(
        self, appliance: RayAppliance, place: int, number: int, program: PortableProgram, compile_dir: str
    ) -> None:
        self._appliance, self._place, self._number = appliance, place, number
        self._program, self._compile_dir = program, compile_dir

    def load(self) -> None:
        """Compile the program on its system."""
        self._retried("load", self._number, self._program, self._compile_dir)

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run once: send the state, and bring it back."""
        generator = torch.get_rng_state() if self._program.draws else None
        sent = [t.detach() for t in inputs]
        ran = self._retried("run", self._number, sent, generator)
        if ran is None:  # the actor is a new one
            self.load()
            ran = self._retried("run", self._number, sent, generator)
        for host, now in zip(inputs, ran.state, strict=False):
            host.detach().copy_(now)
        if generator is not None:
            torch.set_rng_state(ran.generator)
        return list(ran.outputs)

    def _retried(self, method: str, *arguments: Any) -> Any:
        """Call the system; once more for each time that it died and Ray starts it anew."""
        while True:
            try:
                return self._appliance.call(self._place, method, *arguments)
            except ray.exceptions.ActorUnavailableError:
                logger.warning("system %d has died; Ray starts it anew and the step is run again", self._place)
            except ray.exceptions.RayActorError as error:
                raise BackendError(
                    f"system {self._place} has died in the step {self._program.name!r} and may not be started anew: "
                    f"{' '.join(str(error).split())[:500]} The weights here are those before the step. Save them, and "
                    "begin anew with cstorch.backend(...)."
                ) from error


def _connect(address: str, systems: int) -> None:
    place = address.removeprefix("ray://")
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if place == "local":
        ray.init(address="local", num_cpus=max(os.cpu_count() or 1, systems * CPUS), include_dashboard=False, **quiet)
    else:
        ray.init(address="auto" if place == "auto" else address, **quiet)
