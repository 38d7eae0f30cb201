"""A rule of the real system, with the public source that says so, and what is found to break it."""

from __future__ import annotations

from dataclasses import dataclass

_DOCS = "https://docs.cerebras.net/en/latest/wsc/tutorials/"
_LOOP = "https://training-docs.cerebras.ai/rel-2.4.0/cs-torch/writing-a-custom-training-loop/"
_API = "https://training-api.cerebras.ai/en/1.9.1/wsc/port/porting-pytorch-to-cs/cstorch-api.html"
_BRINGUP = "https://github.com/wilkieolin/nubun/blob/fd5942e8dc81ef25be0dcedc16738324d8c4c995/cerebras/CS3_BRINGUP.md"
_LIMITS = _LOOP + "limitations-of-pytorch-on-cerebras"
_OPTIMIZERS = "https://training-docs.cerebras.ai/cs-torch/writing-a-custom-training-loop/writing-custom-optimizers"
_CLOSURES = "https://training-docs.cerebras.ai/cs-torch/writing-a-custom-training-loop/step-closures"
_STATIC, _CHECKPOINTS = _DOCS + "static_graphs.html", _DOCS + "checkpointing.html"


@dataclass(frozen=True)
class Rule:
    """One thing that the real system refuses.

    Attributes:
        name: By which it is silenced.
        what: What is refused, in a clause that a finding begins with.
        advice: What to write instead.
        source: Where this is said in public.
        reported: Whether that is a user's report from a machine, of one release and one model, rather than the
            documentation: such a pattern may work in another place.
    """

    name: str
    what: str
    advice: str
    source: str
    reported: bool = False


@dataclass(frozen=True)
class Finding:
    """A rule that a program breaks.

    Attributes:
        rule: The rule.
        line: `file.py:12`, or None where there is no line to name.
        detail: What it is about, such as the name of the step.
    """

    rule: Rule
    line: str | None
    detail: str

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        how = "a user reports" if self.rule.reported else "documented"
        return (
            f"[{self.rule.name}] {self.detail}{where}: {self.rule.what}. {self.rule.advice} [{how}: {self.rule.source}]"
        )


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "value-read",
            "the value of a tensor is read inside a traced step",
            "Read it in a function decorated with @cstorch.step_closure, or stay in tensor arithmetic.",
            _CLOSURES,
        ),
        Rule(
            "dynamic-shape",
            "shapes that change from step to step, or depend on values, need another program",
            "Pad, or drop the last short batch with DataLoader(..., drop_last=True); use torch.where for masks.",
            _STATIC,
        ),
        Rule(
            "static-graph",
            "a step that becomes several programs changes its graph, and a system is programmed once",
            "Keep modes, settings and numbers in Python conditions as they were at the first step.",
            _STATIC,
        ),
        Rule(
            "device-types",
            "one type of device is used in a process, and a step works on that device alone",
            "Run the other backend in a process of its own; move tensors to the device before the step.",
            _LIMITS,
        ),
        Rule(
            "no-output",
            "a step that returns no tensor and gives none to a closure is dead code, compiled to an empty module",
            "Return the loss and give it to a step closure at every step.",
            _BRINGUP,
            reported=True,
        ),
        Rule(
            "float64",
            "no system computes in float64: weights are float32, activations a half type",
            "Make the tensors float32.",
            _LIMITS,
        ),
        Rule(
            "returns-module",
            "a step that returns a module, such as a loss function instead of the loss, returns nothing of the program",
            "Return tensors.",
            _API,
        ),
        Rule(
            "uncompiled-model",
            "the model is called instead of what cstorch.compile returned for it",
            "Call the compiled model in the step.",
            _API,
        ),
        Rule(
            "torch-optimizer",
            "optimizers of torch.optim are made for eager execution",
            "Use the one of that name in cstorch.optim.",
            _API,
        ),
        Rule(
            "torch-scheduler",
            "a scheduler of torch sets numbers on the host, which a static graph does not see",
            "Use cstorch.optim.lr_scheduler, whose rates are functions of the step.",
            _LIMITS,
        ),
        Rule(
            "late-state",
            "state of an optimizer that its preinitialize() does not make is made inside the step",
            "Name it in initial_state() of a cstorch.optim.Optimizer, or make it in preinitialize().",
            _OPTIMIZERS,
        ),
        Rule(
            "host-number",
            "a Python number that the step changes stays what the first step made of it",
            "Keep it in a tensor that the step changes in place, or change it in the loop around the step.",
            _DOCS + "cstorch-limitations.html",
        ),
        Rule(
            "tensor-as-number",
            "a tensor is passed where torch wants a Python number",
            "Multiply by the tensor instead.",
            _LIMITS,
        ),
        Rule(
            "batch-dimension",
            "every tensor of a batch has the samples in its first dimension",
            "Give each tensor of the batch the batch dimension first; pass constants as buffers of the model.",
            _BRINGUP,
            reported=True,
        ),
        Rule(
            "batch-outside-executor",
            "a traced step gets its batches from a DataExecutor",
            "Iterate over cstorch.utils.data.DataExecutor(dataloader, num_steps=...).",
            _API,
        ),
        Rule(
            "weights-between-checkpoints",
            "weights can be fetched from a system at checkpoint steps only",
            "Read them in a function decorated with @cstorch.checkpoint_closure.",
            _CHECKPOINTS,
        ),
        Rule(
            "attention",
            "fused attention does not lower (nn.MultiheadAttention, nn.Transformer*, scaled_dot_product_attention)",
            "Write softmax(q @ k.T / sqrt(d)) @ v with a Linear each for q, k and v.",
            _BRINGUP,
            reported=True,
        ),
        Rule(
            "fused-cross-entropy",
            "a fused cross entropy over a vocabulary could not be placed",
            "Write log_softmax, gather and a mask.",
            _BRINGUP,
            reported=True,
        ),
        Rule(
            "norm-of-weights",
            "a normalization whose input depends on no sample has no kernel",
            "Let its input depend on the batch, or write mean, variance and rsqrt out.",
            _BRINGUP,
            reported=True,
        ),
        Rule(
            "slicing",
            "slices in the graph are refused by the compiler's slice kernel",
            "Slice on the host, in the dataset, or select with a one-hot product.",
            _BRINGUP,
            reported=True,
        ),
        Rule(
            "weight-indexing",
            "a weight or buffer that is sliced, split or indexed cannot be sent to the wafer",
            "Use F.embedding or a one-hot product, and one parameter for each part.",
            _BRINGUP,
            reported=True,
        ),
        Rule(
            "weight-transpose",
            "a weight that is transposed by hand cannot be sent to the wafer",
            "Use F.linear(x, weight), which transposes by itself.",
            _BRINGUP,
            reported=True,
        ),
        Rule(
            "counting",
            "bincount and one_hot look at values and do not lower",
            "Compare with a range: (index[:, None] == torch.arange(count)), or cstorch.nn.functional.one_hot.",
            _BRINGUP,
            reported=True,
        ),
        Rule(
            "bool-triangle",
            "triu and tril of a bool tensor do not lower",
            "Compare two ranges: rows[:, None] >= columns[None, :].",
            _BRINGUP,
            reported=True,
        ),
        Rule(
            "bool-concat",
            "concatenating bool tensors is refused",
            "Concatenate int32 tensors and compare the result with 0.",
            _BRINGUP,
            reported=True,
        ),
    )
}
"""All rules, by name."""
