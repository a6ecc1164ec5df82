"""Runs behind an address: requests that come and go share one batch, in the words of the OpenAI protocol."""
