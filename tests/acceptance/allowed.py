"""Items of Lightning's test suite that may fail on csx, each group with the reason.

A name without brackets stands for all parametrisations; `*` matches anything.
"""

from __future__ import annotations

ALLOWED: dict[str, tuple[str, ...]] = {
    "counts how often the Python of a step, or of a hook inside it, runs: on csx once for each program": (
        "callbacks/test_gradient_accumulation_scheduler.py::test_trainer_accumulate_grad_batches_zero_grad",
        "callbacks/test_gradient_accumulation_scheduler.py::test_trainer_accumulate_grad_batches_with_callback",
        "core/test_lightning_optimizer.py::test_lightning_optimizer_automatic_optimization_optimizer_zero_grad",
        "models/test_hooks.py::test_on_before_zero_grad_called",
        "trainer/flags/test_fast_dev_run.py::test_callbacks_and_logger_not_called_with_fastdevrun",
        "trainer/logging_/test_eval_loop_logging.py::test_multiple_dataloaders_reset",
        "trainer/optimization/test_backward_calls.py::test_backward_count_simple",
        "trainer/optimization/test_backward_calls.py::test_backward_count_with_grad_accumulation",
        "trainer/optimization/test_manual_optimization.py::test_multiple_optimizers_manual_call_counts",
        "trainer/optimization/test_manual_optimization.py::test_multiple_optimizers_manual_log",
        "trainer/optimization/test_manual_optimization.py::test_step_with_optimizer_closure_with_different_frequencies",
    ),
    "appends tensors of the step to a Python list, which csx refuses by name (hook recorders do it too)": (
        "checkpointing/test_model_checkpoint.py::test_save_last_only_when_checkpoint_saved",
        "loops/test_training_loop.py::test_training_starts_with_seed",
        "models/test_hooks.py::test_trainer_model_hook_system_eval",
        "models/test_hooks.py::test_trainer_model_hook_system_fit",
        "models/test_hooks.py::test_trainer_model_hook_system_fit_no_val_and_resume_max_epochs",
        "models/test_hooks.py::test_trainer_model_hook_system_fit_no_val_and_resume_max_steps",
        "models/test_hooks.py::test_trainer_model_hook_system_predict",
        "trainer/flags/test_overfit_batches.py::test_overfit_batches_same_batch_for_train_and_val",
    ),
    "reads the value of a tensor in the step, which csx refuses at the line": (
        "loops/test_evaluation_loop_flow.py::*",
        "loops/test_training_loop_flow_dict.py::*",
        "loops/test_training_loop_flow_scalar.py::test__training_step__*",
        "trainer/dynamic_args/test_multiple_eval_dataloaders.py::test_multiple_eval_dataloaders_seq",
        "trainer/logging_/test_train_loop_logging.py::test_sanity_metrics_are_reset",
        "trainer/optimization/test_manual_optimization.py::test_step_with_optimizer_closure",
        "trainer/optimization/test_manual_optimization.py::test_step_with_optimizer_closure_2",
    ),
    "keeps a tensor of the step in a plain attribute, which csx refuses by name": (
        "core/test_lightning_optimizer.py::test_params_groups_and_state_are_accessible",
        "loops/test_loops.py::test_restart_*parity",
    ),
    "fetches its own batches (dataloader_iter), which csx refuses by name": (
        "loops/test_evaluation_loop.py::test_evaluation_loop_dataloader_iter_multiple_dataloaders",
        "loops/test_prediction_loop.py::test_prediction_loop_with_iterable_dataset",
        "loops/test_training_epoch_loop.py::test_training_loop_dataloader_iter_multiple_dataloaders",
    ),
    "uses L-BFGS, which csx refuses by name": (
        "core/test_lightning_optimizer.py::test_lightning_optimizer_automatic_optimization_lbfgs_zero_grad",
        "trainer/optimization/test_backward_calls.py::test_backward_count_with_closure",
    ),
    "uses 64-true, which csx refuses by name": ("trainer/test_trainer.py::test_predict_return_predictions_cpu",),
    "expects that training starts within 100 ms; tracing a step takes longer": (
        "callbacks/test_timer.py::test_timer_stops_training",
    ),
    "expects TorchCheckpointIO to write the file; csx writes with cstorch.save": (
        "checkpointing/test_trainer_checkpoint.py::test_trainer_save_checkpoint_storage_options",
    ),
}
