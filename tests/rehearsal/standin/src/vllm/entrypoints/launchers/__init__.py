"""Where vLLM keeps the flags of its server."""
