"""Where vLLM keeps the pieces of its own parser."""
