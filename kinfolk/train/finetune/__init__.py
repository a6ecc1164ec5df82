"""From a trained or downloaded model to one's own task: a new head, the old body, and the tactics of the literature."""
