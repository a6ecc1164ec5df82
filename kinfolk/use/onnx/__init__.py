"""Models for onnxruntime: graphs with their state as inputs and outputs, and the engine that runs them.

`import kinfolk.use.onnx` needs no extra; what writes or runs a graph does.
"""
