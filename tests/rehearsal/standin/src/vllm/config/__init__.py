"""Where vLLM keeps what the flags configure."""
