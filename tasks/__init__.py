"""The pyinfra side of the project."""

import sys

# pyinfra turns this on for its own sake; every run would then compile tasks and aibox anew.
sys.dont_write_bytecode = False
