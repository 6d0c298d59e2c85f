"""A pyinfra deploy of stock operations; `against_ansible.py` hands it the resources."""

from io import StringIO

from pyinfra import host
from pyinfra.operations import apt, files, server, systemd

wanted = host.data.resources

apt.packages(name="Packages", packages=wanted["packages"])

for one in wanted["users"]:
    server.user(
        name=f"User {one['name']}",
        user=one["name"],
        home=one["home"],
        shell=one["shell"],
        ensure_home=False,
    )

for one in wanted["folders"]:
    files.directory(
        name=f"Folder {one['path']}",
        path=one["path"],
        user=one["owner"],
        group=one["group"],
        mode=one["mode"],
    )

for one in wanted["files"]:
    files.put(
        name=f"File {one['path']}",
        src=StringIO(one["content"]),
        dest=one["path"],
        user=one["owner"],
        group=one["group"],
        mode=one["mode"],
    )

for unit in wanted["units"]:
    systemd.service(name=f"Unit {unit}", service=unit, running=True, enabled=True)
