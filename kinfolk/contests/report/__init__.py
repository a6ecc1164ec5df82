"""Pages and files of comparisons and suites."""
