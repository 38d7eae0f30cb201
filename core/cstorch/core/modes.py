"""The names of what a program may be told to do (`cerebras.pytorch.core.modes`)."""

TRAIN = "train"
EVAL = "eval"
EVAL_ALL = "eval_all"
TRAIN_AND_EVAL = "train_and_eval"
