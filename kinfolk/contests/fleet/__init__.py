"""Trials on many machines: a queue in a shared folder, workers that pull from it, and engines that start workers."""
