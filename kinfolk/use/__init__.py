"""What a trained model is used for: predict, inspect, compress, export, serve."""
