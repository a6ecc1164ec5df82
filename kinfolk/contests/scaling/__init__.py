"""How the loss falls with size and data: a ladder of models, a power law through them, and where it leads."""
