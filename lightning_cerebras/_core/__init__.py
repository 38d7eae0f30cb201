"""The parts of the Lightning binding that are the same for `lightning.pytorch` and `pytorch_lightning`."""
