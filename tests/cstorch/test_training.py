"""Training on csx gives the numbers of plain PyTorch on the cpu."""

import pytest
import torch
from programs import OPTIMIZERS, TASKS, assert_equal_runs, train_csx, train_eager


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("task", TASKS)
def test_twenty_steps_equal_eager(csx, task, optimizer):
    truth = train_eager(TASKS[task], optimizer, 20)
    run = train_csx(TASKS[task], optimizer, 20)
    assert_equal_runs(truth, run)
    assert run.python_calls == 1


@pytest.mark.native
@pytest.mark.parametrize(
    ("task", "optimizer"), [("mlp", "sgd"), ("mlp", "sgd-momentum"), ("cnn", "adamw"), ("gpt", "adamw")]
)
def test_twenty_compiled_steps_equal_eager(csx, task, optimizer):
    truth = train_eager(TASKS[task], optimizer, 20)
    run = train_csx(TASKS[task], optimizer, 20)
    assert_equal_runs(truth, run)
    assert run.python_calls == 1


def test_csx_trains_after_an_unrelated_cpu_backward(csx):
    (torch.randn(3, requires_grad=True) * 2).sum().backward()
    assert_equal_runs(train_eager(TASKS["mlp"], "adamw", 5), train_csx(TASKS["mlp"], "adamw", 5))
