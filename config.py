"""pyinfra reads this before the inventory."""

from pyinfra import config

from tasks import call_order, exit_codes, fact_pipelining, given_words, settings_files

config.REQUIRE_PYINFRA_VERSION = "==3.10.0"
config.SUDO = True

call_order.quick()
fact_pipelining.enable()
exit_codes.watch()
settings_files.judge()
given_words.judge()
