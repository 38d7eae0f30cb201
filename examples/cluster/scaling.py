"""Where more systems stop paying: bytes a step, bandwidth needed, efficiency at 8, 64 and 1024 systems, on paper.

    python examples/cluster/scaling.py

A step of one system on its part of the batch takes `6 * parameters * tokens / speed` seconds. Gradients go round a
ring of all systems as float32, `2 * (N - 1) / N * 4 * parameters` bytes out of each; a share of that is hidden behind
what backward still computes. The controller sends each system its samples, one system after another.
"""

from __future__ import annotations

from dataclasses import dataclass

SYSTEMS = (8, 64, 1024)
HIDDEN = 0.5  # of the time of a step: gradients can travel behind it once backward has made the first of them
MESSAGE = 20e-6  # seconds of the controller for each system's message, beside its bytes


@dataclass(frozen=True)
class Model:
    """What is trained.

    Attributes:
        name: Its name.
        parameters: Numbers in it.
        sequence: Tokens in a sample; the batch sends two integers of 8 bytes for each, input and label.
        batch: Samples in the global batch.
    """

    name: str
    parameters: float
    sequence: int
    batch: int


@dataclass(frozen=True)
class Hardware:
    """What it is trained on.

    Attributes:
        name: Its name.
        speed: Useful floating-point operations a second of one system.
        bandwidth: Bytes a second out of one system.
        latency: Seconds until the first byte is there.
    """

    name: str
    speed: float
    bandwidth: float
    latency: float


MODELS = (
    Model("GPT 1 M", 1e6, 256, 1024),
    Model("GPT 111 M", 111e6, 2048, 1024),
    Model("GPT 1.3 B", 1.3e9, 2048, 1024),
)
HARDWARE = (
    Hardware("16 cores, 10 Gbit/s", 1.5e12, 10e9 / 8, 30e-6),
    Hardware("GPU, 200 Gbit/s", 4e14, 200e9 / 8, 10e-6),
    Hardware("wafer, 1200 Gbit/s", 3e16, 1200e9 / 8, 10e-6),
)


@dataclass(frozen=True)
class Step:
    """One step of N systems on one global batch.

    Attributes:
        compute: Seconds that a system computes.
        gradient_bytes: Bytes of gradients out of each system.
        ring: Seconds that they travel.
        sample_bytes: Bytes of samples out of the controller.
        controller: Seconds until the last system has its samples.
    """

    compute: float
    gradient_bytes: float
    ring: float
    sample_bytes: float
    controller: float

    @property
    def seconds(self) -> float:
        """What the step takes: what cannot be hidden adds up."""
        return self.compute + max(0.0, self.ring - HIDDEN * self.compute) + self.controller

    @property
    def limit(self) -> str:
        """What costs most beside computing."""
        shown = max(0.0, self.ring - HIDDEN * self.compute)
        if max(shown, self.controller) < 0.05 * self.seconds:
            return "computing"
        return "gradients" if shown >= self.controller else "controller"


def step_of(model: Model, hardware: Hardware, systems: int) -> Step:
    """A step on so many systems."""
    compute = 6 * model.parameters * model.batch * model.sequence / systems / hardware.speed
    gradients = 2 * (systems - 1) / systems * 4 * model.parameters
    ring = gradients / hardware.bandwidth + 2 * (systems - 1) * hardware.latency
    samples = (systems - 1) / systems * model.batch * model.sequence * 16
    controller = (systems - 1) * MESSAGE + samples / hardware.bandwidth
    return Step(compute, gradients, ring, samples, controller)


def efficiency(model: Model, hardware: Hardware, systems: int) -> float:
    """How much of N times the speed of one system is left."""
    return step_of(model, hardware, 1).compute / systems / step_of(model, hardware, systems).seconds


def half_at(model: Model, hardware: Hardware) -> int:
    """The most systems, a power of two and at most the samples of the batch, that are still half used."""
    systems = 1
    while 2 * systems <= model.batch and efficiency(model, hardware, 2 * systems) >= 0.5:
        systems *= 2
    return systems


def needed(model: Model, hardware: Hardware, systems: int) -> float:
    """Bytes a second out of each system with which gradients would be hidden behind backward; latency left aside."""
    step = step_of(model, hardware, systems)
    return step.gradient_bytes / (HIDDEN * step.compute)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def table() -> str:
    """All of it, as Markdown."""
    head = ["model", "system", *(f"N={n}: ms, Gbit/s needed, efficiency, limit" for n in SYSTEMS), "half used up to"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for model in MODELS:
        for hardware in HARDWARE:
            cells = [model.name, hardware.name]
            for systems in SYSTEMS:
                step = step_of(model, hardware, systems)
                wanted = needed(model, hardware, systems) * 8 / 1e9
                share = efficiency(model, hardware, systems)
                cells.append(f"{_number(step.seconds * 1e3)}, {_number(wanted)}, {share:.0%}, {step.limit}")
            rows.append("| " + " | ".join([*cells, str(half_at(model, hardware))]) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
