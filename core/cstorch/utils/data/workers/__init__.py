"""Input workers: processes that run an input function and hand their batches over in shared memory."""
