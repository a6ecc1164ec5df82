"""Make a trained model smaller: cut out heads, neurons and layers, clear weights, and measure what each costs."""
