"""HTTP server with continuous batching: runs behind OpenAI's protocol."""
