"""The operators as plain loops, written from the definition: what the tests believe."""
