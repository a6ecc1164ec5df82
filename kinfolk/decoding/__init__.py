"""From a prompt to text: greedy, sampled, or by beam search, over the state that every causal relative keeps."""

from kinfolk.decoding.decode import generate
from kinfolk.decoding.options import Decoding

__all__ = ["Decoding", "generate"]
