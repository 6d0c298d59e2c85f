"""Settings for your own boxes: copy this file to site.py, which git ignores, and change it.

Every name in all.py may stand here, once. The inventory puts its hosts into the group `site`.
"""

# One flag over the model card's; the plan shows what it changes.
# serve = {"max-num-seqs": 448}

# With several cards in the box, the one that serves: `nvidia-smi -L` lists them. Where several
# serve together (docs/several-cards.md), a list: ["GPU-...", "GPU-..."]
# gpu_uuid = "GPU-00000000-0000-0000-0000-000000000000"

# Less power and heat for little speed; `nvidia-smi -q -d POWER` shows what the card allows.
# power_limit_w = 450

# A new driver needs a reboot: allow it although the server answers requests.
# reboot_while_serving = True

# Weights on a disk of their own (about 55 GB for the default model).
# models_folder = "/data/models"
