"""Items of Lightning's test suite that may fail on csx, each group with the reason.

A name without brackets stands for all parametrisations; `*` matches anything.
"""

from __future__ import annotations

ALLOWED: dict[str, tuple[str, ...]] = {
    "counts calls of PyTorch's functions in a step (with a mock): on csx one for each program": (
        "callbacks/test_gradient_accumulation_scheduler.py::test_trainer_accumulate_grad_batches_zero_grad",
        "callbacks/test_gradient_accumulation_scheduler.py::test_trainer_accumulate_grad_batches_with_callback",
        "core/test_lightning_optimizer.py::test_lightning_optimizer_automatic_optimization_optimizer_step",
        "core/test_lightning_optimizer.py::test_lightning_optimizer_automatic_optimization_optimizer_zero_grad",
        "core/test_lightning_optimizer.py::test_lightning_optimizer_manual_optimization_and_accumulated_gradients",
        "trainer/logging_/test_logger_connector.py::test_metrics_reset",
        "trainer/optimization/test_backward_calls.py::test_backward_count_simple[2]",
        "trainer/optimization/test_backward_calls.py::test_backward_count_simple[3]",
        "trainer/optimization/test_backward_calls.py::test_backward_count_with_grad_accumulation",
        "trainer/optimization/test_manual_optimization.py::test_multiple_optimizers_manual_call_counts",
        "trainer/optimization/test_manual_optimization.py::test_multiple_optimizers_manual_log",
        "trainer/optimization/test_manual_optimization.py::test_step_with_optimizer_closure",
        "trainer/optimization/test_manual_optimization.py::test_step_with_optimizer_closure_2",
        "trainer/optimization/test_manual_optimization.py::test_step_with_optimizer_closure_with_different_frequencies",
        "trainer/test_trainer.py::test_train_loop_system",
    ),
    "counts calls of torch.save, or expects TorchCheckpointIO to write; csx writes with cstorch.save": (
        "checkpointing/test_checkpoint_callback_frequency.py::test_default_checkpoint_freq",
        "checkpointing/test_checkpoint_callback_frequency.py::test_top_k",
        "checkpointing/test_trainer_checkpoint.py::test_trainer_save_checkpoint_storage_options",
    ),
    "compares values of the state_dict in the step with Python's assert, which csx refuses at the line": (
        "trainer/test_trainer.py::test_gradient_accumulation_scheduling_last_batch",
    ),
    "compares a tensor of the device with one of the cpu, which fails on every other device too": (
        "models/test_restore.py::test_trainer_properties_restore_ckpt_path",
    ),
    "uses L-BFGS, which csx refuses by name": (
        "core/test_lightning_optimizer.py::test_lightning_optimizer_automatic_optimization_lbfgs_zero_grad",
        "trainer/optimization/test_backward_calls.py::test_backward_count_with_closure",
    ),
    "looks for the name of the cpu's strategy in a profile": (
        "profilers/test_profiler.py::test_pytorch_profiler_trainer_fit",
    ),
    "uses 64-true, which csx refuses by name": (
        "trainer/test_trainer.py::test_predict_return_predictions_cpu[64-true-None]",
        "trainer/test_trainer.py::test_predict_return_predictions_cpu[64-true-False]",
        "trainer/test_trainer.py::test_predict_return_predictions_cpu[64-true-True]",
    ),
    "expects the accelerator of the cpu, or two of its devices": (
        "trainer/test_trainer.py::test_trainer_config_strategy[trainer_kwargs0-SingleDeviceStrategy-CPUAccelerator-1]",
        "trainer/test_trainer.py::test_trainer_config_device_ids[trainer_kwargs3-expected_device_ids3]",
    ),
    "expects that training starts within 100 ms; tracing a step takes longer": (
        "callbacks/test_timer.py::test_timer_stops_training",
    ),
}
