"""Names of client programs that import and say what to do instead, and those of cerebras.appliance."""

import importlib
import logging
import subprocess
import sys

import cstorch
import pytest
import torch
from cstorch.core.annotation import AnnotationMode, create_annotation

ABSENT = {
    "cstorch.sparse": ("Group", "SparsityAlgorithm", "map_sparsity_algorithm", "configure"),
    "cstorch.sparse.configure": ("default_sparse_param_filter", "configure"),
    "cstorch.nn": ("SelectiveGrad",),
    "cstorch.nn.functional": ("sparse_matmul", "sparse_act_matmul"),
    "cstorch.experimental": (
        "Compression",
        "start_implicit_loop",
        "update_implicit_loop",
        "get_loop_iteration_slice",
    ),
    "cstorch.saver": ("PyTorchH5Saver",),
    "cstorch.storage.serializers": ("use_external_link", "cache_deferred_tensors"),
    "cerebras.appliance.utils.debug_args": (
        "DebugArgs",
        "get_debug_args",
        "update_debug_args_from_keys",
        "write_debug_args",
    ),
    "cerebras.appliance.utils.ini": ("set_ini", "set_default_ini"),
}
NOWHERE = {
    "cstorch.storage.constants": "cstorch.load",
    "cerebras.appliance.storage": "cstorch.load",
    "cerebras.appliance.cluster.client": "no cluster",
    "cerebras.appliance.errors": "RuntimeError",
    "cerebras.appliance.utils.units": "Format the number",
    "cerebras.appliance.utils.ini": "csx.debug.ini",
    "cerebras.appliance.utils.debug_args": "csx.debug.debug_args",
}


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in ABSENT.items() for n in names])
def test_a_name_is_there_and_its_use_says_what_to_do(module, name):
    found = getattr(importlib.import_module(module), name)
    arguments = ("weight", None) if name == "default_sparse_param_filter" else ()
    with pytest.raises(NotImplementedError, match=rf"{name} is not part of this implementation\. [A-Z].*\.$"):
        found(*arguments)
    assert found.__doc__


@pytest.mark.parametrize("module", NOWHERE)
def test_other_names_of_a_module_are_one_clear_import_error(module):
    with pytest.raises(ImportError, match=rf"{module}\.Anything is not part of this.*{NOWHERE[module]}"):
        exec(f"from {module} import Anything")
    assert not hasattr(importlib.import_module(module), "__path__") or module.count(".") < 3


def test_what_takes_hold_of_a_model_fails_where_it_is_made():
    class Mine(cstorch.sparse.SparsityAlgorithm):
        pass

    assert not isinstance(torch.nn.Linear(1, 1), cstorch.sparse.SparsityAlgorithm)
    with pytest.raises(NotImplementedError, match="train dense"):
        Mine()


def test_smooth_l1_loss():
    loss = cstorch.nn.SmoothL1Loss()(torch.tensor([0.5, 3.0]), torch.zeros(2))
    assert loss == pytest.approx((0.5 * 0.25 + 2.5) / 2)


def test_hints_are_warned_of_and_change_nothing():
    from cstorch.utils.kernel import kernel_annotater
    from cstorch.utils.num_kv_groups import groups_annotater

    class Tag(AnnotationMode.Config):
        pass

    def double(x):
        return 2 * x

    with pytest.warns(UserWarning, match=r"create_annotation\(.*test_absent_names.py.*no effect here"):
        assert create_annotation(Tag, lambda: AnnotationMode.Attribute("tag", 1), tag="a")(double) is double
    with pytest.warns(UserWarning, match=r"kernel_annotater\("):
        assert kernel_annotater("fast")(double) is double
    with pytest.warns(UserWarning, match=r"groups_annotater\("):
        assert groups_annotater(4)(double) is double
    assert kernel_annotater()(double) is double
    assert groups_annotater(None)(double) is double


def test_whether_a_file_is_a_checkpoint(tmp_path):
    saver = cstorch.saver.PyTorchH5Saver
    cstorch.save({"a": torch.ones(1)}, tmp_path / "a.mdl")
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    found = [saver.is_valid_checkpoint(tmp_path / name) for name in ("a.mdl", "a.pt", "b.mdl")]
    assert found == [True, False, False]


def test_flags_of_a_cluster():
    csx = cstorch.backends.csx
    csx.cluster.auto_taint = False
    assert csx.cluster.auto_taint is False
    del csx.cluster.auto_taint
    assert csx.cluster.auto_taint is None
    assert csx.storage.s3.profile is None
    with pytest.raises(ValueError, match=r"csx\.storage\.s3\.profile was set to 'me', expected None"):
        csx.storage.s3.profile = "me"
    csx.debug.implicit_cast_cb16_to_fp32 = True
    del csx.debug.implicit_cast_cb16_to_fp32
    assert csx.debug.implicit_cast_cb16_to_fp32 is False


def test_the_package_name_of_old_releases():
    code = """
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import cerebras_pytorch as cstorch
    from cerebras_pytorch.utils.data import DataLoader
import cerebras.pytorch
assert cstorch is cerebras.pytorch
assert DataLoader is cerebras.pytorch.utils.data.DataLoader
(said,) = [w for w in seen if w.category is FutureWarning]
assert "Write import cerebras.pytorch" in str(said.message)
assert said.filename == "<string>", said.filename
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_loggers_of_classes_and_levels():
    from cerebras.appliance import log

    @log.named_class_logger("Short")
    class Long(log.ClassLogger):
        pass

    @log.named_class_logger
    class Plain(log.ClassLogger):
        pass

    class Other(Plain):
        pass

    assert [kind().logger.name for kind in (Long, Plain, Other)] == ["Short", "Plain", "Plain"]
    assert isinstance(log.wsc_logger, logging.Logger)
    assert [log.get_level_name(level) for level in ("info", 20)] == [20, "INFO"]
    with pytest.raises(ValueError, match="no level 'loud'"):
        log.get_level_name("loud")
    assert log.collect_wsc_log_settings() == []


def test_tools_of_the_appliance(tmp_path, monkeypatch):
    import os

    from cerebras.appliance.environment import appliance_environ
    from cerebras.appliance.errors import ApplianceNanError
    from cerebras.appliance.utils.classes import retrieve_all_subclasses
    from cerebras.appliance.utils.file import create_symlink
    from cerebras.appliance.utils.units import bytes_to_human

    class A:
        pass

    class B(A):
        pass

    class C(A):
        pass

    class D(B, C):
        pass

    assert list(retrieve_all_subclasses(A)) == [B, C, D]
    for target in ("one", "two"):
        (tmp_path / target).mkdir()
        create_symlink(tmp_path / "latest", target)
        assert (tmp_path / "latest").resolve() == tmp_path / target
    with pytest.raises(FileExistsError):
        create_symlink(tmp_path / "latest", "one", replace=False)
    with pytest.raises(FileExistsError):
        create_symlink(tmp_path / "one", "two")
    monkeypatch.delenv("A_VARIABLE", raising=False)
    appliance_environ["A_VARIABLE"] = "1"
    assert os.environ.pop("A_VARIABLE") == "1"
    assert bytes_to_human(1536) == "1.5 KiB"
    assert issubclass(ApplianceNanError, RuntimeError)
