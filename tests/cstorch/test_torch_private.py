"""What cstorch relies on in PyTorch's private surface; a failure names what a new release moved."""

import contextlib
import inspect

import torch


def test_device_surface():
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    assert "backend_module" in inspect.signature(_setup_privateuseone_for_python_backend).parameters
    assert torch._C._get_privateuse1_backend_name() == "csx"
    assert callable(torch.Tensor._make_wrapper_subclass)
    assert torch._C._disabled_torch_function_impl is not None
    assert "fn" in inspect.signature(torch.nn.Module._apply).parameters


def test_tracing_surface():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(torch.ones(2))
        assert fake.add_(1) is fake
        assert fake.view(2).untyped_storage()._cdata == fake.untyped_storage()._cdata
    assert torch.compiler._is_compiling_flag is False
    assert torch.ops.aten.add_.Tensor._schema.arguments[0].alias_info.is_write
    assert torch._C.DisableTorchFunction is not None
    norm = torch.ops.aten.native_batch_norm.default._schema
    names = [argument.name for argument in norm.arguments]
    assert names[3:6] == ["running_mean", "running_var", "training"]
    assert not norm.is_mutable  # once it says what it writes to, mutated_arguments need not know it


def test_groups_have_names():
    from cstorch._torch_private.collectives import is_connection_error, make_gloo_group, name_group, unregister_group
    from torch._C._distributed_c10d import _resolve_process_group

    group = make_gloo_group("first", torch.distributed.HashStore(), 0, 1, "127.0.0.1", 10)
    name_group("second", group)
    assert _resolve_process_group("second") is group
    unregister_group("first")
    unregister_group("second")
    assert is_connection_error(RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"))
    assert not is_connection_error(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_global_flags():
    from cstorch._torch_private.tracing import any_autocast, default_device, deterministic

    assert (any_autocast(), default_device(), deterministic()) == (False, None, False)
    torch.set_default_device("cpu")
    try:
        assert default_device() == torch.device("cpu")
    finally:
        torch.set_default_device(None)
    with torch.autocast("cpu"):
        assert any_autocast()


def test_optimizer_surface():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    assert type(optimizer).step.hooked
    assert callable(type(optimizer).step.__wrapped__)


def test_backward_surface():
    from cstorch._torch_private.backward import around_engine, is_on
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    mode, seen = Mode(), []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: seen.append(is_on(mode)))
    with mode, around_engine(lambda outputs: contextlib.nullcontext()):
        y.sum().backward()
    with mode, around_engine(lambda outputs: mode):
        z = x * 2
        z.register_hook(lambda g: seen.append(is_on(mode)))
        z.sum().backward()
        z = x * 2
        z.register_hook(lambda g: seen.append(is_on(mode)))
        torch.autograd.grad(z.sum(), x)
    assert seen == [False, True, True]


def test_inductor_surface():
    from pathlib import Path

    from torch._inductor import codecache, config, inductor_prims

    assert isinstance(codecache.AotCodeCompiler.__dict__["compile"], classmethod)
    parameters = list(inspect.signature(codecache.AotCodeCompiler.compile).parameters)
    assert parameters[:2] == ["graph", "wrapper_code"]
    assert "aot_mode" in inspect.signature(codecache._get_cpp_wrapper_header).parameters
    assert (Path(codecache.__file__).parent / "codegen" / "aoti_runtime" / "interface.cpp").exists()
    for name in ("vec_isa_ok",):
        assert hasattr(config.cpp, name)
    for name in ("compile_wrapper_opt_level", "enable_line_tables", "output_path"):
        assert hasattr(config.aot_inductor, name)
    assert hasattr(config, "fallback_random")
    assert hasattr(config, "joint_custom_pre_pass")
    assert callable(inductor_prims.force_stride_order)
    assert callable(torch._C._aoti.AOTIModelContainerRunnerCpu)
    assert not torch.backends.cuda.is_built() or callable(torch._C._aoti.AOTIModelContainerRunnerCuda)


def test_setters_reach_function_modes():
    from torch.overrides import TorchFunctionMode

    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if getattr(func, "__name__", "") == "__set__":
                seen.append(func.__self__)
            return func(*args, **(kwargs or {}))

    t = torch.ones(2, requires_grad=True)
    with Mode():
        t.grad = None
        t.data = torch.zeros(2)
    assert seen == [torch.Tensor.grad, torch.Tensor.data]


def test_generator_surface():
    from cstorch._torch_private.generator import WORDS, read_twister, write_twister

    generator = torch.Generator().manual_seed(1)
    assert read_twister(generator.get_state())[1] == WORDS  # all words of the seed's block count as drawn
    torch.empty(3, dtype=torch.int64).random_(generator=generator)
    state = generator.get_state()
    block, drawn = read_twister(state)
    assert drawn in (3, 6)
    assert torch.equal(write_twister(state, block, drawn), state)


def test_shapes_without_contents():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    meta = torch.empty(3, 4, device="meta")
    storage = meta.untyped_storage()
    assert meta.t().untyped_storage()._cdata == storage._cdata
    assert storage.nbytes() == 48
    fake = FakeTensor(FakeTensorMode(), meta, torch.device("cpu"))
    assert fake.device.type == "cpu"
    assert fake.untyped_storage()._cdata == storage._cdata
    assert torch.Tag.nondeterministic_seeded in torch.ops.aten.normal_.default.tags
    assert torch.Tag.inplace_view in torch.ops.aten.t_.default.tags


def test_parameters_without_a_shape():
    from torch.nn.parameter import UninitializedParameter, UninitializedTensorMixin

    assert list(inspect.signature(UninitializedTensorMixin.materialize).parameters) == [
        "self",
        "shape",
        "device",
        "dtype",
    ]
    made = UninitializedParameter(device="cpu")
    made.materialize((2, 3))
    assert type(made) is torch.nn.Parameter


def test_optimizer_and_scheduler_surface():
    from torch.optim import lr_scheduler

    assert not hasattr(torch.optim.Optimizer, "param_groups")  # of instances: a descriptor can stand before it
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert "param_groups" in vars(optimizer)
    assert "state" in vars(optimizer)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    assert vars(scheduler)["_last_lr"] == [0.1]
    assert scheduler.get_last_lr() is vars(scheduler)["_last_lr"]
    assert "step" in vars(lr_scheduler.LRScheduler)


def test_serialization_surface():
    from cstorch._torch_private import serialization as surface
    from torch import _weights_only_unpickler as unpickler

    allowed = unpickler._get_allowed_globals()
    for function in (surface.rebuild_tensor, surface.rebuild_tensor_of_dtype, surface.rebuild_parameter):
        assert allowed[f"torch._utils.{function.__name__}"] is function
    assert surface.storage_class(torch.float32) is torch.FloatStorage
    assert surface.storage_class(torch.uint16) is None
    storage = torch.ones(3).storage()
    assert surface.is_typed_storage(storage)
    assert surface.typed_length(storage) == 3
    assert surface.untyped(storage).nbytes() == 12
    x = torch.ones(3)
    assert surface.storage_id(x) == surface.storage_id(x[1:]) != surface.storage_id(x.clone())


def test_what_modules_ask_of_values():
    from cstorch._torch_private.tracing import counts_as_given
    from torch.nn.modules import batchnorm, transformer

    assert callable(transformer._detect_is_causal_mask)
    assert "float" in batchnorm._BatchNorm.forward.__code__.co_names
    with counts_as_given():
        assert "float" in vars(batchnorm)
    assert "float" not in vars(batchnorm)


def test_autocast_surface():
    from torch.amp import autocast_mode

    assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", "AutocastCPU")
    assert "aten::mm" in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    assert list(inspect.signature(autocast_mode.custom_bwd).parameters) == ["bwd", "device_type"]
    assert callable(autocast_mode._cast)
    with torch.autocast("cpu"):
        with torch._C._DisableAutocast():
            assert not torch.is_autocast_enabled("cpu")
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")


def test_device_guard_surface():
    from cstorch._torch_private import unwinding

    names = unwinding.virtual_functions()
    assert names[:5] == ["type", "exchangeDevice", "getDevice", "setDevice", "uncheckedSetDevice"]
    assert "exchangeStream" in names
    assert unwinding.let_errors_pass()
