"""Pure functions on tensors, without parameters. Each has a plain-loop twin of the same name in `ops/naive`."""
