"""State of incremental decoding: KV cache, ring buffer, recurrent state."""
