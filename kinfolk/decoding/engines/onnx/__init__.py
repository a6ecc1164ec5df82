"""onnxruntime: the sessions, states and engine of an exported model."""
