"""Names that programs written for the reference use beyond the specification, and older spellings with a warning."""

import importlib
import json

import cstorch
import pytest
import torch
from cstorch.core.compile import register_trace_fn_post_hook, register_trace_fn_pre_hook
from cstorch.utils import nest, tracker, utils
from cstorch.utils.call_once import call_once
from torch import nn


def loop(step, steps=4, **rest):
    """Run a traced step on a model of its own; what the step closures saw."""
    model = nn.Linear(3, 2)
    compiled = cstorch.compile(model, cstorch.backend())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    keep = cstorch.step_closure(lambda *values: seen.append([float(v) for v in values]))

    @cstorch.trace
    def traced(x):
        optimizer.zero_grad()
        loss = step(compiled, x)
        loss.backward()
        optimizer.step()
        keep(loss)

    data = torch.arange(steps * 6.0).reshape(steps, 2, 3) / 10
    executor = cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(lambda: iter(data)), steps, **rest)
    for x in executor:
        traced(x)
    return seen, traced


def graph_of(traced):
    (programs,) = traced._programs.values()
    return programs[0].program.graph.graph


def test_name_scopes_nest_and_name_operations():
    @cstorch.name_scope("inner")
    def inside(x):
        return x * 2

    def step(model, x):
        with cstorch.name_scope("outer"):
            x = inside(x)
        return model(x).square().mean()

    cstorch.backend("CSX")
    _, traced = loop(step)
    scopes = {node.meta.get("scope") for node in graph_of(traced).nodes}
    assert {"outer/inner", ""} <= scopes
    with pytest.raises(ValueError, match="name_scope got ''"):
        cstorch.name_scope("")


@pytest.mark.parametrize("kind", ["CPU", "CSX"])
def test_constants_of_the_host_are_part_of_the_step(kind):
    mask = torch.tensor([1.0, 0.0, 2.0])
    cstorch.backend(kind)
    torch.manual_seed(0)
    seen, _ = loop(lambda model, x: model(x * cstorch.make_constant(mask)).square().mean())
    torch.manual_seed(0)
    model, expected = nn.Linear(3, 2), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.arange(24.0).reshape(4, 2, 3) / 10:
        optimizer.zero_grad()
        loss = model(x * mask).square().mean()
        loss.backward()
        optimizer.step()
        expected.append([loss.item()])
    torch.testing.assert_close(seen, expected)


def test_current_executor_is_the_one_whose_loop_runs():
    cstorch.backend("CPU")
    loader = cstorch.utils.data.DataLoader(lambda: iter(torch.ones(2, 1)))
    executor = cstorch.utils.data.DataExecutor(loader, num_steps=2)
    assert cstorch.current_executor() is None
    assert [cstorch.current_executor() for _ in executor] == [executor, executor]
    assert cstorch.current_executor() is None


@pytest.mark.parametrize(("kind", "times"), [("CPU", 3), ("CSX", 1)])
def test_hooks_run_around_the_python_of_a_step(kind, times):
    calls = []
    before = register_trace_fn_pre_hook(lambda: calls.append("before"))
    after = register_trace_fn_post_hook(lambda: calls.append("after"))

    def step(model, x):
        return model(x).mean()

    cstorch.backend(kind)
    try:
        loop(step, 3)
    finally:
        before.remove()
        after.remove()
    assert calls == ["before", "after"] * times
    loop(step, 1)
    assert len(calls) == 2 * times
    with pytest.raises(TypeError, match="a hook is a int"):
        register_trace_fn_pre_hook(3)


@pytest.mark.parametrize("kind", ["CPU", "CSX"])
def test_hooks_after_a_step_run_when_it_raises(kind):
    calls = []

    def step(model, x):
        calls.append("step")
        raise KeyError("no")

    def fail():
        raise ValueError("not yet")

    cstorch.backend(kind)
    handles = [register_trace_fn_pre_hook(lambda: calls.append("before"))]
    handles.append(register_trace_fn_post_hook(lambda: calls.append("after")))
    try:
        with pytest.raises(KeyError, match="no"):
            loop(step, 1)
        assert calls == ["before", "step", "after"]
        handles.append(register_trace_fn_pre_hook(fail))
        with pytest.raises(ValueError, match="not yet"):
            loop(step, 1)
        assert calls == ["before", "step", "after", "before"]
    finally:
        for handle in handles:
            handle.remove()
    seen, _ = loop(lambda model, x: model(x).mean(), 2)
    assert len(seen) == 2


def test_levels_of_precision_nest():
    seen = []
    head = cstorch.pol(level=0)(lambda: seen.append(cstorch.current_pol()))
    before = cstorch.current_pol()
    cstorch.pol(level=2)(lambda: (seen.append(cstorch.current_pol()), head()))()
    cstorch.pol(bwd_level=0)(lambda: seen.append(cstorch.current_pol()))()
    assert seen == [2, 0, before]
    with pytest.raises(ValueError, match="level=3"):
        cstorch.pol(3)


def test_a_profile_of_some_steps(tmp_path):
    cstorch.backend("CSX")
    ready = []
    with cstorch.profiler.profile(cstorch.profiler.schedule(2, 3), ready.append) as profile:
        loop(lambda model, x: model(x).mean(), 5)
    assert ready == [profile]
    assert "addmm" in profile.get_summary()
    cstorch.profiler.tensorboard_trace_handler(tmp_path / "logs")(profile)
    (file,) = (tmp_path / "logs").iterdir()
    assert json.loads(file.read_text())["traceEvents"]
    with cstorch.profiler.profile() as off, pytest.raises(RuntimeError, match="within another"):
        cstorch.profiler.profile().__enter__()
    assert off.get_summary() == "No step was profiled."
    with pytest.raises(ValueError, match="start_step=3 and end_step=2"):
        cstorch.profiler.schedule(3, 2)


def test_a_profile_that_ends_before_it_begins_warns():
    cstorch.backend("CPU")
    profile = cstorch.profiler.profile(cstorch.profiler.schedule(3, 4))
    with pytest.warns(UserWarning, match=r"no step was profiled: 2 ran within.*start_step=3") as said, profile:
        loop(lambda model, x: model(x).mean(), 2)
    assert len([w for w in said if "no step was profiled" in str(w.message)]) == 1
    assert said[0].filename == __file__
    with pytest.raises(KeyError, match="no"), cstorch.profiler.profile(cstorch.profiler.schedule(3, 4)):
        raise KeyError("no")


def test_tensors_in_nested_values_have_places():
    value = {"a": [torch.ones(1), torch.zeros(2)], "b": (torch.ones(3), 4)}
    found = [(place, len(tensor)) for place, tensor in nest.visit_torch_tensors(value, scope=["batch"])]
    assert found == [(["batch", "a", "0"], 1), (["batch", "a", "1"], 2), (["batch", "b", "0"], 3)]
    spec = torch.utils._pytree.tree_flatten(value)[1]
    assert list(nest.recurse_spec(spec)) == [["a", "0"], ["a", "1"], ["b", "0"], ["b", "1"]]


def test_parameters_are_chosen_by_pattern():
    chosen = utils.make_param_filter(["*weight", "re:^norm"])
    assert [chosen(name, None) for name in ("layer.weight", "layer.bias", "norm.bias")] == [True, False, True]
    with pytest.raises(ValueError, match="no regular expression"):
        utils.convert_glob_to_regex("re:(")


def test_once_and_rates():
    calls = []
    once = call_once()(lambda x: calls.append(x) or len(calls))
    assert (once(1), once(2), calls) == (1, 1, [1])
    now = [0.0]
    rates = tracker.RateTracker(lambda: now[0])
    rates.add(6)
    now[0] = 2.0
    assert (rates.total_count, rates.elapsed_seconds(), rates.global_rate()) == (6, 2.0, 3.0)
    rates.reset_time(1.0)
    assert (rates.total_count, rates.elapsed_seconds()) == (6, 1.0)


def test_who_a_process_is_and_what_it_yields():
    cluster = cstorch.distributed.ClusterConfig(num_csx=2, num_workers_per_csx=2)
    assert (cstorch.distributed.get_rank(), cstorch.distributed.get_world_size()) == (0, 1)
    assert cstorch.distributed.service_resolver().cluster_spec.task().rank == 0
    cstorch.backend("CPU", cluster_config=cluster)
    assert cstorch.distributed.get_streaming_batch_size(8) == 8
    assert cstorch.distributed.get_streaming_batch_size(8, global_rank=3) == 4
    with pytest.raises(ValueError, match="global_rank is 4"):
        cstorch.distributed.get_streaming_batch_size(8, global_rank=4)


def test_whether_a_copy_of_a_folder_fits(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_bytes(bytes(100))
    too_large, size, space = cstorch.distributed.hit_worker_cache_limit(tmp_path / "data", tmp_path / "copy")
    assert (too_large, size) == (False, 100)
    assert space > 100


def test_flags_take_their_default_again():
    debug = cstorch.backends.csx.debug
    debug.drop_data = True
    debug.drop_data = cstorch.backends.DEFAULT
    assert debug.drop_data is False


def test_a_flag_that_is_deleted_has_its_default_again():
    debug, saved = cstorch.backends.csx.debug, {}
    for name in ("lazy_initialization", "debug_args", "silenced_constraints"):
        saved[name] = getattr(debug, name)
    debug.lazy_initialization, debug.debug_args, debug.silenced_constraints = False, {"a": 1}, ("slicing",)
    for name in saved:
        delattr(debug, name)
    assert {name: getattr(debug, name) for name in saved} == saved
    with pytest.raises(AttributeError, match=r"csx\.debug has no flag 'lazy'; it has retrace_every_iteration"):
        del debug.lazy


def test_the_configuration_of_a_device_is_that_of_the_flags():
    debug = cstorch.backends.csx.debug
    config = cstorch.backend("CSX").device.config
    assert (config.lazy_initialization, config.drop_data) == (True, False)
    try:
        config.lazy_initialization, config.drop_data = False, True
        assert (debug.lazy_initialization, debug.drop_data) == (False, True)
        with pytest.raises(ValueError, match=r"csx\.debug\.drop_data was set to 1, expected True or False"):
            config.drop_data = 1
    finally:
        del debug.lazy_initialization, debug.drop_data
    assert (config.lazy_initialization, config.drop_data) == (True, False)


def test_types_of_backends_and_their_arguments():
    kind = type(cstorch.backend("cpu").backend_type)
    assert kind.from_str("csx").is_csx
    assert not kind.CPU.is_gpu
    assert "compile_dir" in cstorch.backend.get_backend_args("CSX")
    assert "sync_batchnorm" in cstorch.backend.get_backend_args(kind.GPU)
    with pytest.raises(ValueError, match="'tpu'"):
        kind.from_str("tpu")


def test_mixed_precision_of_the_cpu_backend():
    cstorch.backend("CPU", mixed_precision=True)
    model = cstorch.compile(nn.Linear(2, 2), cstorch.backend())
    assert model(torch.ones(1, 2)).dtype == cstorch.amp.get_half_dtype()


def test_modules_know_their_place():
    model = nn.Sequential(nn.Linear(1, 1))
    assert cstorch.get_debug_name(model[0]) == "Linear"
    cstorch.add_debug_name(model, "net")
    assert cstorch.get_debug_name(model[0]) == "net.0"


def test_old_spellings_warn_and_work():
    with pytest.warns(FutureWarning, match=r"Write torch\.manual_seed\(3\)"):
        cstorch.manual_seed(3)
    first = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(first, torch.rand(1))
    with pytest.warns(FutureWarning, match="ClusterConfig"):
        config = cstorch.utils.CSConfig(num_csx=None, precision_opt_level=2)
    assert isinstance(config, cstorch.distributed.ClusterConfig)
    assert (config.num_csx, config.precision_opt_level) == (1, 2)
    with pytest.warns(FutureWarning, match="no effect here"):
        cstorch.distributed.ClusterConfig(job_priority="p1")
    with pytest.warns(FutureWarning, match="max_checkpoints"):
        cstorch.backend("CSX", max_checkpoints=3)
    before = cstorch.amp.get_half_dtype()
    with pytest.warns(FutureWarning, match="set_half_dtype"):
        cstorch.amp.use_bfloat16(True)
    assert cstorch.amp.get_half_dtype() == torch.bfloat16
    cstorch.amp.set_half_dtype(before)


def test_names_that_are_gone_say_what_to_do():
    with pytest.raises(AttributeError, match=r"no attribute 'compile_step'\. Decorate the step with @cstorch\.trace"):
        cstorch.compile_step  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'\.$"):
        cstorch.nothing  # noqa: B018
    assert not hasattr(cstorch, "configure")


def test_the_executor_under_the_module_name_of_the_reference():
    from cerebras.pytorch.utils.data.data_executor import DataExecutor, MbsSetting

    assert DataExecutor is cstorch.utils.data.DataExecutor
    assert int in MbsSetting.__args__


def test_a_cs_config_of_the_executor_reaches_the_backend():
    cstorch.backend("CPU")
    with pytest.warns(FutureWarning, match="ClusterConfig"):
        config = cstorch.utils.CSConfig()
    with pytest.warns(FutureWarning, match="cs_config"):
        seen, _ = loop(lambda model, x: model(x).mean(), 2, cs_config=config)
    assert len(seen) == 2
    with pytest.warns(FutureWarning, match="micro_batch_size=2.*csx.performance.micro_batch_size"):
        loop(lambda model, x: model(x).mean(), 2, micro_batch_size=2)
    with pytest.raises(NotImplementedError, match="listeners"):
        loop(lambda model, x: model(x).mean(), 2, listeners=[object()])


def test_rates_are_called_as_in_old_releases():
    cstorch.backend("CPU")
    loader = cstorch.utils.data.DataLoader(lambda: iter(torch.ones(3, 2, 1)))
    executor = cstorch.utils.data.DataExecutor(loader, num_steps=3)
    for _ in executor:
        pass
    with pytest.warns(FutureWarning, match=r"rate_tracker\.total_samples"):
        assert executor.profiler.total_samples() == 6


@pytest.mark.parametrize("make", [cstorch.sparse.configure, cstorch.experimental.listener.create_listener])
def test_what_is_not_there_says_what_to_do(make):
    with pytest.raises(NotImplementedError, match="not part of this implementation"):
        make({})


def test_the_same_names_under_the_name_of_the_reference():
    import cerebras.pytorch as reference

    for name in ("name_scope", "pol", "current_executor", "make_constant", "profiler", "sparse", "core"):
        assert getattr(reference, name) is getattr(cstorch, name)
    module = importlib.import_module("cerebras.pytorch.core.compile")
    assert module.register_trace_fn_pre_hook is register_trace_fn_pre_hook
