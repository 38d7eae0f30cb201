"""A Python step becomes a program: recording, guards, host scalars, optimizers, gradients, closures.

Read `step.py` first: it is where a call of a traced step finds, makes and runs its program.
"""
