"""pyinfra reads this before the inventory."""

from pyinfra import config

config.REQUIRE_PYINFRA_VERSION = "==3.10.0"
config.SUDO = True
