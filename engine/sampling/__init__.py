"""Drawing tokens on the device: per-request columns, the counter-based random numbers, the sampler."""
