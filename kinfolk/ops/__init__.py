"""Operators (attention, recurrences, losses) as pure functions; each has a plain-loop twin in `ops/naive`."""
