"""A stand-in for Grafana's own apt repository, with a package that holds what the deploy needs.

No registry that rehearsals may ask has Grafana. The stand-in is a web server that answers
/api/health and /login as Grafana does, reads its settings from the same variables and its
provisioned files from the same folders, and shows no dashboard.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.rehearsal.emulation import debian_package, signing
from tests.rehearsal.emulation.debian_package import Package, deb, stanza
from tests.rehearsal.machine import locked

VERSION = "13.0.1"
MADE_AT = "Thu, 09 Oct 2025 08:53:20 UTC"
POOL = "pool/main/g/grafana"
INDEX = "main/binary-amd64/Packages"
UNIT = b"""\
[Unit]
Description=Grafana instance (stand-in)
After=network-online.target

[Service]
EnvironmentFile=/etc/default/grafana-server
User=grafana
Group=grafana
Type=exec
Restart=on-failure
ExecStart=/usr/share/grafana/bin/grafana server
CapabilityBoundingSet=
NoNewPrivileges=true
PrivateDevices=true
PrivateTmp=true
ProtectHome=true
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""
# What it has been told, at its start; the first password is kept from then on, as Grafana's is.
SERVER = b"""\
#!/usr/bin/python3
import base64, glob, hashlib, http.server, json, os, re

HOME = "/var/lib/grafana"
PROVISIONED = "/etc/grafana/provisioning"


def setting(name, default):
    text = os.environ.get(name, default)
    file = re.fullmatch(r"\\$__file\\{(.*)\\}", text)
    return open(file[1]).read().strip() if file else text


def read(folder):
    found = []
    for path in sorted(glob.glob(f"{PROVISIONED}/{folder}/*.yaml")):
        lines = [line for line in open(path) if not line.startswith("#")]
        found += json.loads("".join(lines))[folder if folder == "datasources" else "providers"]
    return found


first = f"{HOME}/admin"
if not os.path.exists(first):
    password = setting("GF_SECURITY_ADMIN_PASSWORD", "admin")
    open(first, "w").write(hashlib.sha256(password.encode()).hexdigest())
boards = [json.load(open(path)) for one in read("dashboards")
          for path in sorted(glob.glob(one["options"]["path"] + "/*.json"))]
answers = {
    "/api/health": {"database": "ok", "version": "%s"},
    "/api/datasources": read("datasources"),
    "/api/search": [{"uid": one["uid"], "title": one["title"]} for one in boards],
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        user, _, password = base64.b64decode(given).decode().partition(":")
        right = hashlib.sha256(password.encode()).hexdigest() == open(first).read()
        status = 200 if self.path == "/api/health" or user == "admin" and right else 401
        status = status if self.path in answers else 404
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answers.get(self.path) if status == 200 else {}).encode())


address = setting("GF_SERVER_HTTP_ADDR", ""), int(setting("GF_SERVER_HTTP_PORT", "3000"))
http.server.ThreadingHTTPServer(address, Handler).serve_forever()
""" % VERSION.encode()
ADDS_USER = """\
[ "$1" = configure ] || exit 0
id grafana >/dev/null 2>&1 ||
  useradd --system --home-dir /usr/share/grafana --no-create-home --shell /bin/false grafana
install -d -o grafana -g grafana -m 755 /var/lib/grafana
[ ! -d /run/systemd/system ] || systemctl daemon-reload
"""


@dataclass(frozen=True)
class Repository:
    """content_key: twelve hex digits for all that is in it. fingerprint: of its key."""

    content_key: str
    fingerprint: str

    def url(self, hub: str) -> str:
        return f"{hub}/files/grafana/{self.content_key}"


@cache
def content_key() -> str:
    digest = hashlib.sha256(signing.fingerprint("grafana").encode())
    for path in (Path(__file__), Path(str(debian_package.__file__))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def served(files: Path) -> Repository:
    """Have it below the folder `files`. RehearsalError when gpg fails."""
    place = files / "grafana" / content_key()
    if not place.is_dir():
        with locked(files.parent / "grafana.lock"):
            if not place.is_dir():
                build(place)
    os.utime(place)
    return Repository(content_key(), signing.fingerprint("grafana"))


def build(place: Path) -> None:
    """As apt wants it: the index of a suite, signed, and the packages in a pool."""
    aside = place.with_suffix(".building")
    dists = aside / "dists/stable"
    (aside / POOL).mkdir(parents=True, exist_ok=True)
    package = grafana()
    file = deb(package)
    (aside / POOL / package.file_name).write_bytes(file)
    text = stanza(package, file).replace("Filename: ./", f"Filename: {POOL}/").encode()
    indexes = {INDEX: text, f"{INDEX}.gz": gzip.compress(text, mtime=0)}
    for name, content in indexes.items():
        (dists / name).parent.mkdir(parents=True, exist_ok=True)
        (dists / name).write_bytes(content)
    with signing.signer("grafana") as key:
        (dists / "InRelease").write_text(key.clear_signed(release(indexes)))
        (aside / "gpg.key").write_text(key.public())
    aside.rename(place)


def release(indexes: Mapping[str, bytes]) -> str:
    head = {"Origin": "rehearsal", "Suite": "stable", "Codename": "stable", "Date": MADE_AT}
    head |= {"Architectures": "amd64", "Components": "main"}
    rows = [f"{name}: {value}\n" for name, value in head.items()]
    sums = [
        f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n"
        for name, content in indexes.items()
    ]
    return "".join([*rows, "SHA256:\n", *sums])


def grafana() -> Package:
    return Package(
        "grafana",
        VERSION,
        "grafana",
        {"Depends": "python3"},
        {
            "usr/share/grafana/bin/grafana": SERVER,
            "usr/lib/systemd/system/grafana-server.service": UNIT,
            "etc/default/grafana-server": b"GRAFANA_USER=grafana\n",
        },
        {"postinst": ADDS_USER},
    )
