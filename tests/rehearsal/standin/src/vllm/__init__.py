"""A stand-in for vLLM 0.31.0: a `vllm serve` that starts in a second and needs no dependency.

It takes the flags, prints the journal lines, ends with the exit codes and answers on the paths of
the real one, so that everything around a server can be rehearsed without one.
"""

import importlib.metadata

__version__ = importlib.metadata.version("vllm")
