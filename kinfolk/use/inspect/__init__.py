"""Look inside a model: what every head attends to, what is special to each relative, and what heads are for."""
