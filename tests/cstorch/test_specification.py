"""Every name of the API specification, under the reference's name: signature, defaults, docstring; and its snippets."""

import functools
import inspect

import cerebras.pytorch as cstorch
import numpy as np
import pytest
import torch

REQUIRED = inspect.Parameter.empty
MADE = "a new one each time"

SIGNATURES = {
    "backend": {"backend_type": None},
    "distributed.ClusterConfig": {
        "mgmt_address": None,
        "credentials_path": None,
        "num_csx": 1,
        "max_wgt_servers": 24,
        "max_act_per_csx": 1,
        "num_workers_per_csx": 1,
        "job_time_sec": None,
        "mount_dirs": None,
        "python_paths": None,
        "job_labels": None,
    },
    "current_backend": {"raise_exception": True, "raise_warning": True},
    "current_torch_device": {},
    "use_cs": {},
    "compile": {"model": REQUIRED, "backend": None},
    "trace": {"step_fn": REQUIRED},
    "full": {"shape": REQUIRED, "value": REQUIRED, "dtype": None},
    "full_like": {"other": REQUIRED, "value": REQUIRED, "dtype": None},
    "ones": {"shape": REQUIRED, "dtype": None},
    "ones_like": {"other": REQUIRED, "dtype": None},
    "zeros": {"shape": REQUIRED, "dtype": None},
    "zeros_like": {"other": REQUIRED, "dtype": None},
    "save": {"obj": REQUIRED, "checkpoint_file": REQUIRED},
    "load": {"checkpoint_file": REQUIRED, "map_location": None},
    "utils.data.DataLoader": {"input_fn": REQUIRED},
    "utils.data.DataLoader.state_dict": {"self": REQUIRED},
    "utils.data.DataLoader.load_state_dict": {"self": REQUIRED, "state_dict": REQUIRED},
    "utils.data.SyntheticDataset": {"sample_spec": REQUIRED, "num_samples": None},
    "utils.data.DataExecutor": {
        "dataloader": REQUIRED,
        "num_steps": None,
        "checkpoint_steps": None,
        "activation_steps": None,
        "profiler_activities": None,
    },
    "utils.data.RestartableDataLoader": {},
    "utils.data.RestartableDataLoader.state_dict": {"self": REQUIRED},
    "utils.data.RestartableDataLoader.load_state_dict": {"self": REQUIRED, "state_dict": REQUIRED, "strict": True},
    "utils.data.RestartableDataLoader.aggregate_state_dict": {"self": REQUIRED, "worker_states": REQUIRED},
    "utils.data.RestartableDataLoader.deaggregate_state_dict": {
        "self": REQUIRED,
        "aggregated_state_dict": REQUIRED,
        "strict": True,
    },
    "utils.data.DataLoaderCheckpoint": dict.fromkeys(
        (
            "global_worker_id",
            "local_worker_id",
            "total_num_workers",
            "num_workers_per_csx",
            "num_csx",
            "wse_id",
            "appliance_step",
            "worker_step",
            "samples_streamed",
        ),
        REQUIRED,
    ),
    "distributed.get_worker_state": {},
    "from_numpy": {"array": REQUIRED},
    "to_numpy": {"tensor": REQUIRED},
    "step_closure": {"closure": REQUIRED},
    "checkpoint_closure": {"closure": REQUIRED},
    "utils.tensorboard.SummaryWriter": {"base_step": 0},
    "utils.tensorboard.SummaryWriter.add_tensor": {},
    "utils.tensorboard.SummaryReader": {"log_dirs": REQUIRED, "filter": None},
    **{
        f"utils.tensorboard.SummaryReader.{name}": {}
        for name in (
            "reload", "read_scalar", "Scalars", "read_tensor", "scalar_names", "scalar_groups", "tensor_names",
            "text_summary_names", "read_text_summary", "Tags",
        )
    },
    "utils.benchmark.benchmark_dataloader": {
        "input_fn": REQUIRED,
        "num_epochs": None,
        "steps_per_epoch": None,
        "sampling_frequency": None,
        "profile_activities": None,
        "print_metrics": True,
    },
    "utils.benchmark.utils.dataloader.Metrics": {
        "dataloader_build_time": MADE,
        "epoch_metrics": MADE,
        "batch_specs": MADE,
        "total_time": MADE,
        "global_rate": 0.0,
        "is_partial": True,
        "start_time_ns": MADE,
        "end_time_ns": 0,
    },
    "utils.benchmark.utils.dataloader.EpochMetrics": {
        "iterator_creation": MADE,
        "iteration_time": MADE,
        "total_steps": 0,
        "batch_metrics": MADE,
        "start_time_ns": MADE,
        "end_time_ns": 0,
    },
    "utils.benchmark.utils.dataloader.BatchMetrics": {
        "epoch_step": REQUIRED,
        "global_step": REQUIRED,
        "local_rate": REQUIRED,
        "global_rate": REQUIRED,
        "profile_activities": MADE,
        "sampling_time_ns": MADE,
    },
}  # fmt: skip
"""Parameters in their order with their defaults. What goes beyond the specification comes behind, with defaults."""

VARIADIC = ("backend", "utils.data.DataLoader", "utils.tensorboard.SummaryWriter")
KEYWORDS = (*VARIADIC, "utils.tensorboard.SummaryReader", "load")

BACKENDS = {
    "CSX": {
        "artifact_dir": None,
        "compile_dir": None,
        "compile_only": False,
        "validate_only": False,
        "cluster_config": None,
    },
    "CPU": {"artifact_dir": None},
}

FLAGS = {
    "precision.optimization_level": (1, (0, 2), (3, -1)),
    "performance.micro_batch_size": ("auto", (None, 4, "explore", {"explore": {"min": 1, "max": 4}}), (0, "best")),
    "performance.transfer_processes": (5, (1,), (0, "many")),
    "performance.use_speculative_optimizers": (True, (False,), (1,)),
    "debug.retrace_every_iteration": (False, (True,), (1,)),
    "debug.lazy_initialization": (True, (False,), (1,)),
    "debug.debug_args": (None, (), ()),
    "debug.ini": (None, (), ()),
    **{f"debug.{who}_memory_gi": (None, (4,), (-1, "all"))
       for who in ("compile_crd", "execute_crd", "wrk", "act", "cmd", "wgt")},
}  # fmt: skip
"""Default, values that are valid, and values that are not."""

PROPERTIES = {
    "utils.benchmark.utils.dataloader.Metrics": ("total_steps", "global_sample_rate"),
    "utils.benchmark.utils.dataloader.EpochMetrics": ("total_time",),
}


def find(name):
    return functools.reduce(getattr, name.split("."), cstorch)


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_name_is_there_with_its_signature_and_words(name):
    thing = find(name)
    expected = SIGNATURES[name]
    parameters = inspect.signature(thing).parameters
    kinds = [p.kind for p in parameters.values()]
    named = [p for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    given = {p.name: p.default for p in named}
    if name != "utils.data.RestartableDataLoader":  # a protocol, which nobody makes
        assert [*given][: len(expected)] == [*expected]
    for parameter, default in expected.items():
        if default is MADE:
            assert given[parameter] is not REQUIRED
            assert given[parameter] is not None
        else:
            assert given[parameter] == default
    if expected:
        assert REQUIRED not in [*given.values()][len(expected) :], "what goes beyond the specification is optional"
    assert (inspect.Parameter.VAR_POSITIONAL in kinds) is (name in VARIADIC) or name.endswith("RestartableDataLoader")
    if name in KEYWORDS:
        assert inspect.Parameter.VAR_KEYWORD in kinds
    words = inspect.getdoc(thing)
    assert words
    if not name.startswith("utils.tensorboard.SummaryReader."):
        for parameter in expected:
            assert parameter == "self" or len(expected) <= 2 or parameter in words, f"{name} does not say {parameter}"


@pytest.mark.parametrize("kind", BACKENDS)
def test_backends_take_what_is_specified(kind, tmp_path):
    with cstorch.backend(kind, artifact_dir=tmp_path) as made:
        parameters = inspect.signature(type(made)).parameters
        assert {name: parameters[name].default for name in BACKENDS[kind]} == BACKENDS[kind]
        assert all(name in inspect.getdoc(type(made)) for name in BACKENDS[kind])
        assert made.artifact_dir == tmp_path


@pytest.mark.parametrize("name", FLAGS)
def test_flags_have_their_defaults_and_check_their_values(name):
    group_name, flag = name.split(".")
    group = getattr(cstorch.backends.csx, group_name)
    assert flag in dir(group)
    default, valid, invalid = FLAGS[name]
    assert getattr(group, flag) == default
    try:
        for value in valid:
            setattr(group, flag, value)
            assert getattr(group, flag) == value
        for value in invalid:
            with pytest.raises(ValueError, match=flag):
                setattr(group, flag, value)
    finally:
        setattr(group, flag, default)


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_of_metrics(name):
    for attribute in PROPERTIES[name]:
        assert isinstance(getattr(find(name), attribute), property)
        assert getattr(find(name), attribute).__doc__


def test_names_in_words():
    assert issubclass(cstorch.utils.profiler.Activity, object)
    assert (
        cstorch.Backend is cstorch.backend.__globals__["Backend"] if hasattr(cstorch.backend, "__globals__") else True
    )
    cstorch.utils.data.utils.Schedule([cstorch.utils.data.utils.Schedule.Range(0, 2)])
    assert np.array_equal(cstorch.to_numpy(cstorch.from_numpy(np.arange(3))), np.arange(3))
    assert cstorch.current_torch_device() == torch.device("cpu")


# -- the snippets, completed with the least code around them ---------------------------------------------------


def test_snippet_of_trace(csx):
    model = torch.nn.Linear(3, 2)
    compiled_model = cstorch.compile(model, csx)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = torch.nn.CrossEntropyLoss()

    @cstorch.trace
    def training_step(batch, model, optimizer, loss_fn):
        features, labels = batch
        outputs = model(features)
        loss = loss_fn(outputs, labels)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    keep = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    loader = cstorch.utils.data.DataLoader(lambda: [(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))])
    for batch in cstorch.utils.data.DataExecutor(loader, num_steps=4):
        keep(training_step(batch, compiled_model, optimizer, loss_fn))
    assert len(losses) == 4
    assert losses[3] < losses[2] < losses[1] < losses[0]


class Restartable:
    """The loader of the restart snippets: the four methods as the specification has them."""

    def __init__(self):
        self.loaded = []

    def __iter__(self):
        for _ in range(10):
            yield torch.ones(2, 3)

    def __len__(self):
        return 10

    def state_dict(self):
        worker_state = cstorch.distributed.get_worker_state()
        state_dict = {}
        if worker_state:
            state_dict["worker_step"] = worker_state.worker_step
            state_dict["worker_id"] = worker_state.global_worker_id
        return state_dict

    def load_state_dict(self, state_dict, strict=True):
        wrk_state_dict = state_dict.get("worker_0", {})

        worker_step = wrk_state_dict.get("worker_step", 0)
        worker_id = wrk_state_dict.get("worker_id")

        self.loaded.append(f"WRK {worker_id} loaded step: {worker_step}")

    def aggregate_state_dict(self, worker_states):
        return {"worker_0": worker_states[0]}

    def deaggregate_state_dict(self, aggregated_state_dict, strict=True):
        return {"worker_0": aggregated_state_dict.get("worker_0", {})}


def test_snippets_of_restartable_dataloaders(csx):
    assert isinstance(Restartable(), cstorch.utils.data.RestartableDataLoader)
    with pytest.raises(RuntimeError, match="get_worker_state"):
        cstorch.distributed.get_worker_state()
    step = cstorch.trace(lambda x: x.sum())
    states = []

    @cstorch.checkpoint_closure
    def save_checkpoint():
        states.append(loader.state_dict())

    loader = cstorch.utils.data.DataLoader(Restartable)
    for batch in cstorch.utils.data.DataExecutor(loader, num_steps=3, checkpoint_steps=3):
        step(batch)
        save_checkpoint()
    assert states[0]["worker_0"] == {"worker_step": 3, "worker_id": 0}
    made = Restartable()
    again = cstorch.utils.data.DataLoader(lambda: made)
    again.load_state_dict(states[0])
    for batch in cstorch.utils.data.DataExecutor(again, num_steps=1):
        step(batch)
    assert made.loaded == ["WRK 0 loaded step: 3"]


def test_snippet_of_step_closures(csx):
    from cerebras.pytorch import step_closure

    seen = []

    @step_closure
    def closure(value):
        seen.append(value.item())

    @cstorch.trace
    def step(x):
        closure(x.sum())
        return x

    for batch in cstorch.utils.data.DataExecutor(
        cstorch.utils.data.DataLoader(lambda: [torch.ones(2, 2)]), num_steps=2
    ):
        step(batch)
    assert seen == [4.0, 4.0]


def test_snippet_of_checkpoint_closures(csx, tmp_path):
    from cerebras.pytorch import checkpoint_closure

    model = torch.nn.Linear(2, 1)
    compiled = cstorch.compile(model, csx)
    step = cstorch.trace(lambda x: compiled(x).sum())

    @checkpoint_closure
    def save_checkpoint(number):
        cstorch.save({"model": model.state_dict()}, tmp_path / f"{number}.mdl")

    loader = cstorch.utils.data.DataLoader(lambda: [torch.ones(2, 2)])
    executor = cstorch.utils.data.DataExecutor(loader, num_steps=250, checkpoint_steps=100)
    for number, batch in enumerate(executor, 1):
        step(batch)
        # Always call save checkpoint
        # But save checkpoint only actually runs on checkpoint steps
        save_checkpoint(number)
    assert sorted(int(path.stem) for path in tmp_path.glob("*.mdl")) == [100, 200, 250]
