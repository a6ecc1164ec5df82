"""Speed and memory beside the peers: fresh interleaved processes, medians, and ratios."""
