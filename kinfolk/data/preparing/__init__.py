"""`kin prepare`: raw files to tokenized shards on disk."""
