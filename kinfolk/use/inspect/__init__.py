"""Look inside a model: attention of every head, what is special to each relative, and what heads are for."""
