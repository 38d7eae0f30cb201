"""The executor: which steps run, which closures run in them, and when."""

import json
import warnings

import cstorch
import pytest
import torch
from cstorch.errors import DataError
from cstorch.utils.data import DataExecutor, DataLoader, Schedule


def loader(count=4):
    return DataLoader(lambda: [torch.full((2, 1), float(i)) for i in range(count)])


@pytest.fixture(params=["CSX", "CPU"])
def backend(request, compile_cache):
    options = {"compile_dir": compile_cache} if request.param == "CSX" else {}
    with cstorch.backend(request.param, **options) as made:
        yield made


def run(executor, **closures):
    """Iterate; record which closures ran at which iteration."""
    ran = []
    step = cstorch.trace(lambda x: x.sum())
    act = cstorch.step_closure(lambda value: ran.append(("step", executor.iteration, float(value))))
    save = cstorch.checkpoint_closure(lambda: ran.append(("checkpoint", executor.iteration)))
    for batch in executor:
        act(step(batch))
        save()
    return ran


def test_it_runs_num_steps_over_as_many_epochs_as_needed(backend):
    ran = run(DataExecutor(loader(3), num_steps=7))
    assert [r[2] for r in ran] == [0, 2, 4, 0, 2, 4, 0]


def test_the_number_of_steps_is_the_length_of_the_loader(backend):
    assert len(DataExecutor(loader(3))) == 3
    with pytest.raises(DataError, match="num_steps is not given and the dataloader has no length"):
        DataExecutor(DataLoader(lambda: iter([torch.ones(1)])))
    with pytest.raises(DataError, match="num_steps is 0, expected at least 1"):
        DataExecutor(loader(), num_steps=0)


def test_a_generator_is_asked_for_again_each_epoch(backend):
    made = []

    def input_fn():
        made.append(1)
        yield from (torch.full((1,), float(i)) for i in range(2))

    assert [r[2] for r in run(DataExecutor(DataLoader(input_fn), num_steps=5))] == [0, 1, 0, 1, 0]
    assert len(made) == 3


def test_an_empty_loader_is_an_error(backend):
    with pytest.raises(DataError, match="yielded no batch"):
        run(DataExecutor(DataLoader(list), num_steps=1))


@pytest.mark.parametrize(
    ("checkpoint_steps", "expected"),
    [(None, []), (0, []), (2, [1, 3, 4]), (5, [4]), (9, [4]), (1, [0, 1, 2, 3, 4]),
     (Schedule([Schedule.Range(0, 4, 3), 4]), [0, 3, 4])],
)  # fmt: skip
def test_checkpoint_closures_run_on_checkpoint_steps(backend, checkpoint_steps, expected):
    ran = run(DataExecutor(loader(), num_steps=5, checkpoint_steps=checkpoint_steps))
    assert [r[1] for r in ran if r[0] == "checkpoint"] == expected


def test_step_closures_run_on_activation_steps_and_the_last(backend):
    ran = run(DataExecutor(loader(), num_steps=7, activation_steps=3))
    assert [r[1] for r in ran] == ([2, 5, 6] if backend.is_csx else list(range(7)))


def test_activation_steps_divide_checkpoint_steps(backend):
    with pytest.warns(UserWarning, match="fetched every 2 steps"):
        assert DataExecutor(loader(), num_steps=12, activation_steps=4, checkpoint_steps=6).activation_steps == 2


@pytest.mark.parametrize(
    ("activations", "checkpoints", "expected"),
    [
        (10, Schedule([99, 199, 499]), 10),
        (10, Schedule([99, Schedule.Range(204, 300, 5)]), 5),
        (4, Schedule([6]), 1),
        (4, Schedule([499]), 4),  # the last step is fetched anyway
        (4, Schedule([3, 600]), 4),  # past the end
        (4, 0, 4),
        (4, None, 4),
        (4, 8, 4),
    ],
)
def test_activation_steps_divide_the_steps_of_a_schedule(backend, activations, checkpoints, expected):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = {"activation_steps": activations, "checkpoint_steps": checkpoints}
        assert DataExecutor(loader(), num_steps=500, **options).activation_steps == expected
    assert [f"fetched every {expected} steps" in str(w.message) for w in caught] == [True] * (expected != activations)


@pytest.mark.parametrize(
    ("name", "value"), [("checkpoint_steps", "x"), ("checkpoint_steps", -1), ("activation_steps", 0)]
)
def test_bad_cadences_are_refused(backend, name, value):
    with pytest.raises(ValueError, match=name):
        DataExecutor(loader(), num_steps=2, **{name: value})


def test_it_takes_a_cstorch_dataloader_only(backend):
    with pytest.raises(TypeError, match="Wrap the function that makes your loader"):
        DataExecutor([torch.ones(1)])
    with pytest.raises(TypeError, match="expected a function that returns a dataloader"):
        DataLoader([torch.ones(1)])


def test_iteration_properties(backend):
    executor = DataExecutor(loader(), num_steps=3)
    seen = []
    for _ in executor:
        seen.append(
            (
                executor.iteration,
                executor.user_iteration,
                executor.is_initial_step,
                executor.on_final_iteration,
            )
        )
    assert seen == [(0, 1, True, False), (1, 2, False, False), (2, 3, False, True)]


def test_closures_run_after_the_body_in_call_order(backend):
    order, clock = [], [0]
    executor = DataExecutor(loader(), num_steps=2)

    @cstorch.step_closure
    def note(name, value):
        order.append((name, float(value), clock[0]))

    @cstorch.trace
    def step(x):
        y = x.sum()
        note("in the step", y)
        return y

    for batch in executor:
        y = step(batch)
        note("in the body", y)
        clock[0] += 1
    assert order == [
        ("in the step", 0, 1),
        ("in the body", 0, 1),
        ("in the step", 2, 2),
        ("in the body", 2, 2),
    ]


def test_values_of_closures_are_kept_apart(backend):
    kept = []
    executor = DataExecutor(loader(), num_steps=4)
    step = cstorch.trace(lambda x: x + 1)
    keep = cstorch.step_closure(kept.append)
    for batch in executor:
        keep(step(batch))
    assert [t[0].item() for t in kept] == [1, 2, 3, 4]
    assert all(type(t) is torch.Tensor and t.device.type == "cpu" and not t.requires_grad for t in kept)


def test_closures_of_a_broken_off_iteration_run(backend):
    ran = []
    executor = DataExecutor(loader(), num_steps=9)
    for i, _ in enumerate(executor):
        cstorch.step_closure(ran.append)(i)
        if i == 2:
            break
    assert ran == [0, 1, 2]


def test_an_exception_in_a_closure_surfaces_at_its_step(backend):
    executor = DataExecutor(loader(), num_steps=5)

    @cstorch.step_closure
    def check():
        if executor.iteration == 2:
            raise ArithmeticError("loss is NaN")

    with pytest.raises(ArithmeticError, match="loss is NaN"):
        for _ in executor:
            check()
    assert executor.iteration == 2


def test_closures_called_in_closures_act_at_once(backend):
    order = []
    inner = cstorch.step_closure(lambda: order.append("inner"))

    @cstorch.step_closure
    def outer():
        order.append("before")
        inner()
        order.append("after")

    for _ in DataExecutor(loader(), num_steps=1):
        outer()
    assert order == ["before", "inner", "after"]


def test_several_runs_in_one_process(backend):
    for _ in range(2):
        assert len(run(DataExecutor(loader(), num_steps=3))) == 3
    executor = DataExecutor(loader(), num_steps=1)
    run(executor)
    with pytest.raises(DataError, match="iterated over already"):
        run(executor)


def test_the_profile_is_written(backend):
    executor = DataExecutor(loader(), num_steps=4)
    run(executor)
    assert executor.artifact_dir.name == "000001"
    profile = json.loads((executor.artifact_dir / "performance.json").read_text())
    assert profile["total_samples"] == 8
    assert profile["global_rate"] > 0
    assert (executor.artifact_dir.parent / "latest").resolve() == executor.artifact_dir.resolve()
    assert executor.profiler.rate_tracker.total_samples == 8


def test_validate_only_traces_one_step_and_runs_nothing(compile_cache):
    ran, traced = [], []
    with cstorch.backend("CSX", compile_dir=compile_cache, validate_only=True) as backend:
        assert not backend.is_e2e_execution
        model = torch.nn.Linear(1, 1)
        compiled = cstorch.compile(model)
        before = model.weight.detach().cpu().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

        @cstorch.trace
        def step(x):
            traced.append(1)
            compiled(x).sum().backward()
            optimizer.step()

        with pytest.warns(UserWarning, match="only compiles or validates"):
            executor = DataExecutor(loader(), num_steps=5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for batch in executor:
                step(batch)
                cstorch.step_closure(ran.append)(1)
        assert (len(executor), traced, ran) == (1, [1], [])
        assert torch.equal(model.weight.detach().cpu(), before)


def test_reading_weights_off_a_checkpoint_step_warns_once(csx):
    model = torch.nn.Linear(1, 1)
    compiled = cstorch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @cstorch.trace
    def step(x):
        optimizer.zero_grad()
        compiled(x).sum().backward()
        optimizer.step()

    saved = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in DataExecutor(loader(), num_steps=4, checkpoint_steps=2):
            step(batch)
            cstorch.checkpoint_closure(lambda: saved.append(model.state_dict()["weight"].cpu()))()
    assert len(saved) == 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in DataExecutor(loader(), num_steps=4):
            step(batch)
            model.state_dict()["weight"].cpu()
    found = [str(w.message) for w in caught if "weights are read at" in str(w.message)]
    assert len(found) == 1
    assert "test_executor.py" in found[0]
    assert "iteration 0" in found[0]
