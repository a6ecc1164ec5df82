"""Reference operators as plain loops, from the definition: attention, recurrences, losses."""
