"""ClusterConfig: every field is checked when it is assigned."""

import dataclasses

import pytest
from cstorch.distributed import ClusterConfig


def test_defaults_are_those_of_the_specification():
    assert dataclasses.asdict(ClusterConfig()) == {
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
        "restart_attempts": 1,
    }


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("mgmt_address", 3, TypeError),
        ("mgmt_address", "somewhere", ValueError),
        ("mgmt_address", "host:70000", ValueError),
        ("credentials_path", 3, TypeError),
        ("num_csx", 0, ValueError),
        ("num_csx", True, TypeError),
        ("num_csx", None, TypeError),
        ("max_wgt_servers", -1, ValueError),
        ("max_act_per_csx", 1.5, TypeError),
        ("num_workers_per_csx", 0, ValueError),
        ("job_time_sec", 0, ValueError),
        ("mount_dirs", "/data", TypeError),
        ("python_paths", [1], ValueError),
        ("job_labels", ["team"], ValueError),
        ("job_labels", ["=vision"], ValueError),
        ("restart_attempts", -1, ValueError),
    ],
)
def test_a_wrong_value_is_named(field, value, error):
    with pytest.raises(error, match=rf"ClusterConfig\.{field} is .*expected"):
        ClusterConfig(**{field: value})
    config = ClusterConfig()
    with pytest.raises(error):
        setattr(config, field, value)
    assert config == ClusterConfig()


def test_right_values_and_fields_that_do_not_exist():
    config = ClusterConfig(mgmt_address="10.0.0.1:29500", job_labels=["team=vision", "run=1=2"], num_csx=4)
    config.mgmt_address = "ray://head:1"
    config.job_time_sec = 3600
    assert (config.num_csx, config.job_time_sec) == (4, 3600)
    with pytest.raises(AttributeError, match="no field 'num_csxs'; it has mgmt_address"):
        config.num_csxs = 2
