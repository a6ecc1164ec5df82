"""Tasks: what a model is trained to answer, from the columns of a file to the answers in one."""
