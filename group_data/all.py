"""Every setting with its unit and default. Override them for your own boxes in site.py."""

# What is served
model = "qwen3.8-27b"  # a model card's name, see group_data/models/
serve: dict[str, object] = {}  # flags over the card's: {"max-num-seqs": 448}; None takes one away
server_environment: dict[str, str] = {}  # of the server's process, name to text; no secrets

# Versions
vllm_version = "0.31.0"  # text; needs a lock <locks_folder>/vllm-<version>-py<311>.txt
driver_version = "580.178.04"  # text; a CUDA 13 release needs 580.65.06 or newer

# The service
server_unit = "vllm-coder"  # systemd unit, without .service
server_user = "vllm"  # user the server runs as, never root
server_port = 8000  # TCP port on localhost, 1 to 65535
start_timeout_s = 900  # seconds until the server must answer; about 120 measured
retry_failed = False  # True: try a unit again that failed its gate (--data retry_failed=true)

# The doors to it, for other machines (docs/doors.md)
stream = None  # the stream filter: True, False, or None: on unless a stranger holds its port
stream_port = 4000  # TCP port, 1 to 65535
stream_mends: dict[str, str] = {}  # {"think_tag": "on"}: on, count or off, see docs/doors.md
gateway = None  # LiteLLM: True, False, or None: on unless a stranger holds its port
gateway_port = 4001  # TCP port, 1 to 65535
gateway_upstream = None  # URL that LiteLLM asks; None: the filter where it stands, else the server
doors_address = "0.0.0.0"  # address both doors listen on; "127.0.0.1": this box only
metrics_from: list[str] = []  # addresses, networks that may read their /metrics, beside the box
firewall = False  # True: doors and Grafana only for firewall_lan, the server's port for nobody
firewall_lan = None  # networks that may use them; None: the private ones that the box is in

# Watching it (docs/monitoring.md). Of a monitor that is no box: group_data/monitor.py
monitoring = None  # exporters on the box: True, False, or None: on where there is a monitor
box_address = None  # how monitor and gateways reach the box; None: its host name in the inventory
node_exporter_port = 9100  # TCP port, 1 to 65535
gpu_exporter_port = 9835  # TCP port, 1 to 65535
grafana = True  # True or False: Grafana on the monitor, beside Prometheus
grafana_address = "127.0.0.1"  # Grafana: the monitor only; "0.0.0.0": whoever reaches it
grafana_port = 3000  # TCP port, 1 to 65535
grafana_repository = "https://apt.grafana.com"  # URL of its apt repository
grafana_key = "B53AE77BADB630A683046005963FA27710458545"  # fingerprint, 40 hex digits

# The graphics card and its driver
gpu_uuid = None  # "GPU-..." of `nvidia-smi -L`, a list of several; only needed with several cards
gpu_pci_ids = ["10de:2bb1", "10de:2bb4", "10de:2bb5"]  # cards that may serve, vendor:device
power_limit_w = None  # whole watts, kept over reboots; None: the card's own limit
uvm_disable_hmm = False  # True where cuInit fails with 3 or 999; needs a reboot
reboot_timeout_s = 600  # seconds until a rebooted box must be back
reboot_while_serving = False  # True: reboot although the server answers requests

# Folders on the box, absolute
releases_folder = "/opt/vllm/releases"  # one venv for each version and lock
models_folder = "/srv/models"  # weights, <model>/<commit>
cache_folder = "/var/cache/aibox"  # downloads and compiled kernels

# Sources
nvidia_repository = "https://developer.download.nvidia.com/compute/cuda/repos"  # URL, of all
nvidia_key = "EB693B3035CD5710E231E123A4B469963BF863CC"  # fingerprint, 40 hex digits
hub = "https://huggingface.co"  # URL of the model hub
weights_from = None  # hub cache or folder on the box that may hold the weights; None: usual places
download_limit_mbps = None  # megabits a second for weights (100: 12.5 MB/s); None: no limit
release_extra_packages: list[str] = []  # Debian packages that a release needs beside the usual ones
release_extra_files: list[dict[str, str]] = []  # added to a release: {"url", "sha256", "path"}
release_patches: list[dict[str, str]] = []  # {"file", "sha256", "upstream", "vllm": "==0.31.0"}
flashinfer_prebuild = True  # True or False: compile FlashInfer's kernels before the first start
release_find_links = None  # URL of a folder with wheels, beside the package index

# Room
release_disk_gb = 12  # decimal GB a release takes: 8.3 measured, and its unpacked downloads
release_fetch_gb = 3.9  # decimal GB of it on the wire, for the plan: the sum of its wheels
disk_reserve_gb = 10  # decimal GB that stay free on each disk that is written to

# Drift checks (python -m tasks.drift)
accepted: list[str] = []  # foreign things that may stay, as shown: ["port 9100 node_exporter"]
verify_weights = "stamps"  # "stamps": size, time, inode; "full": hash every file, in each run

# Folders of this project, relative to it or absolute
cards_folder = "group_data/models"  # model cards and weights locks
locks_folder = "group_data/locks"  # hash-locked requirements

# This project's own run
pipelining = True  # True or False: all facts of a run from one remote command, see docs/speed.md
