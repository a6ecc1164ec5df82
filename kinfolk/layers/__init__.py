"""The axes of the grammar (attention, feed-forward, norm, position, …): each spec above the module it builds."""
