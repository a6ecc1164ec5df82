"""Tokenizers: bytes, characters, words, BPE, unigram, SentencePiece, WordPiece."""
