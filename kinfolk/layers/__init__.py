"""The axes of the grammar: each spec stands directly above the module it builds."""
