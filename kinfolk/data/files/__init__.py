"""File readers: text, JSON lines, CSV, Parquet, CoNLL, SQuAD, treebanks, images."""
