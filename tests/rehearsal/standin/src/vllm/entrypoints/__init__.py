"""Where vLLM keeps its command line."""
