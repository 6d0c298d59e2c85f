"""An emulated NVIDIA machine, inside a rehearsal box: what its kernel and its commands would do.

It runs on the box with the box's own Python and the standard library only. Everything it knows
lies in files: the hardware and its faults in state.json, what this boot did in boot.json, built
modules below /lib/modules, the initramfs in /boot. Rows of the project's NVIDIA facts are named
where a rule comes from one.
"""
