"""The conformance kit: our own backends pass it, and a backend that is wrong does not."""

import cstorch
import pytest
import torch
from cstorch import plugins
from cstorch.appliance import Appliance
from cstorch.appliance.local import LocalAppliance
from cstorch.distributed import ClusterConfig
from cstorch.plugins import hookimpl
from cstorch.testing import PROGRAMS, check


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", ["CPU", "CSX"])
def test_our_backends_conform(program, backend, compile_cache):
    check(program, backend, **({"compile_dir": compile_cache} if backend == "CSX" else {}))


@pytest.mark.native
@pytest.mark.parametrize("program", ["linear_regression", "dropout_draws"])
def test_compiled_programs_conform(program, compile_cache):
    check(program, "CSX", compile_dir=compile_cache)


def test_each_program_says_what_it_is_for():
    assert len(PROGRAMS) >= 12
    assert all(program.__doc__ for program in PROGRAMS.values())
    with pytest.raises(ValueError, match="no conformance program 'gpt'; there are linear_regression"):
        check("gpt", "CPU")


class Wrong(Appliance):
    """Runs programs in this process, wrongly in the way that it is told."""

    def __init__(self, way):
        self.way = way

    def load(self, program, example, compile_dir):
        run = LocalAppliance().load(program, example, compile_dir)
        count = len(program.state)
        older, masks = [], []

        def wrong(inputs):
            if self.way == "forgets a state tensor" and count:
                first = inputs[count - 1].clone()
                outputs = run(inputs)
                inputs[count - 1].copy_(first)
                return outputs
            if self.way == "keeps its own state" and count:
                if not older:
                    older.extend(t.clone() for t in inputs[:count])
                outputs = run([*older, *inputs[count:]])
                for host, own in zip(inputs[:count], older):
                    host.copy_(own)
                return outputs
            if self.way == "freezes numbers":
                older[:] = older or [t.clone() for t in inputs[count + len(program.leaves) :]]
                return run([*inputs[: count + len(program.leaves)], *older])
            if self.way == "freezes randomness":
                masks[:] = masks or [torch.get_rng_state()]
                torch.set_rng_state(masks[0])
                return run(inputs)
            return [t + 1 if t.dtype == torch.int64 else t for t in run(inputs)]

        return wrong


@pytest.mark.parametrize(
    ("way", "programs"),
    [
        ("forgets a state tensor", ["linear_regression", "mlp_adamw", "accumulated_gradients", "cnn_batch_norm"]),
        ("keeps its own state", ["train_and_evaluate", "host_reads_and_writes", "short_last_batch"]),
        ("freezes numbers", ["linear_regression", "clipped_groups", "numbers_as_arguments"]),
        ("freezes randomness", ["dropout_draws"]),
        ("counts wrongly", ["integers_and_masks"]),
    ],
)
def test_a_wrong_appliance_is_found(way, programs, compile_cache):
    class Connect:
        @hookimpl
        def cstorch_connect_appliance(self, mgmt_address):
            return Wrong(way)

    plugins.reset()
    plugins.register(Connect(), "connect")
    try:
        for program in programs:
            config = ClusterConfig(mgmt_address="wrong://")
            with pytest.raises(AssertionError, match=program):
                check(program, "CSX", compile_dir=compile_cache, cluster_config=config)
            assert cstorch.current_backend(raise_exception=False, raise_warning=False) is None
    finally:
        plugins.reset()
