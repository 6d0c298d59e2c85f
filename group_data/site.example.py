"""Settings for your own boxes: copy this file to site.py, which git ignores, and change it.

Every name in all.py may stand here. The inventory puts its hosts into the group `site`.
"""

# One flag over the model card's; the plan shows what it changes.
# serve = {"max-num-seqs": 448}

# With several cards in the box, the one that serves: `nvidia-smi -L` lists them.
# gpu_uuid = "GPU-00000000-0000-0000-0000-000000000000"

# Weights on a disk of their own (about 55 GB for the default model).
# models_folder = "/data/models"
