"""Units of systemd for one pool: its supervisor, its cells behind a socket, the keeper; and their users.

A unit for each process, so that each has its own walls: the cells' has no network, or that of their egress broker; the
supervisor's no program to run.
`systemd-analyze security` gives each 1.5 or less, 2.2 to cells with `egress` (tests/ops/test_deploy.py).
"""

from __future__ import annotations

from typing import Final

from benteng.ops.deploy.site import Site

COMMON: Final = """\
Type=notify
NotifyAccess=main
Restart=always
RestartSec=2
# What is refused stays refused until somebody mends it, and each start is written into the log.
RestartPreventExitStatus=78
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
PrivateIPC=yes
PrivateMounts=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
ProtectProc=invisible
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
KeyringMode=private
DevicePolicy=closed
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
# To give up capabilities, to bound itself, and to put its own walls up.
SystemCallFilter=capset setrlimit prlimit64 seccomp
SystemCallFilter=landlock_create_ruleset landlock_add_rule landlock_restrict_self
IPAddressDeny=any
NoExecPaths=/
"""

BROKERED: Final = """\
# The broker takes the sockets of cells, which have files of names and a network of their own, as users of their own.
SystemCallFilter=mount umount2 pidfd_getfd
"""


def units(site: Site, database: str) -> dict[str, str]:
    """Return file names and texts. `database`: the addresses of the store, as IPAddressAllow has them."""
    name = f"benteng-{site.pool}"
    return {
        f"{name}.sysusers.conf": _users(site, name),
        f"{name}-cell.socket": _socket(site, name),
        f"{name}-cell.service": _cell(site, name),
        f"{name}.service": _supervisor(site, name, database),
        "benteng-keeper.service": _keeper(site, database),
    }


def _users(site: Site, name: str) -> str:
    lines = [f"# /usr/lib/sysusers.d/{name}.conf: users without login, each side of the pool its own."]
    for user, (uid, gid) in ((name, site.supervisor), (f"{name}-cell", site.cells)):
        lines += [f"g {user} {gid} -", f'u {user} {uid}:{gid} "benteng pool {site.pool}"']
    lines += ['u benteng-keeper - "benteng keeper"']
    return "\n".join(lines) + "\n"


def _socket(site: Site, name: str) -> str:
    return f"""\
[Unit]
Description=benteng pool {site.pool}: where its supervisor meets its cells

[Socket]
ListenStream={site.socket}
SocketUser={name}-cell
SocketGroup={name}
SocketMode=0660
DirectoryMode=0755
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"""


def _cell(site: Site, name: str) -> str:
    connects = site.network or site.egress
    network = "" if connects else "PrivateNetwork=yes\n"
    families = "AF_UNIX AF_INET AF_INET6" if connects else "AF_UNIX"
    allowed = "IPAddressAllow=any\n" if connects else ""
    brokered = BROKERED if site.egress else ""
    shells = "" if site.programs else "InaccessiblePaths=-/bin/sh -/bin/bash -/bin/dash -/usr/bin/sh -/usr/bin/bash\n"
    written = f"ReadWritePaths={' '.join(site.write)}\n" if site.write else ""
    return f"""\
[Unit]
Description=benteng pool {site.pool}: zygote and cells
Requires={name}-cell.socket
After={name}-cell.socket

[Service]
User={name}-cell
Group={name}-cell
ExecStart={site.prefix}/bin/benteng cell --listen fd:3 --supervisor {site.supervisor[0]}
TimeoutStopSec=15
# What jobs started and left is killed with the cgroup of this unit, and bounded by it.
KillMode=mixed
TasksMax=1024
MemoryMax={site.memory_bytes}
OOMPolicy=continue
{COMMON}{network}{allowed}{brokered}RestrictAddressFamilies={families}
RestrictNamespaces={_namespaces(site)}
ProcSubset=pid
ExecPaths=/usr /lib /lib64 {site.prefix}
InaccessiblePaths=-/etc/benteng
{shells}{written}"""


def _namespaces(site: Site) -> str:
    """Of processes for each cell of a pool with programs, so that nothing outlives its job; the others for egress."""
    kinds = [*(("user", "mnt", "net", "ipc") if site.egress else ()), *(("user", "pid") if site.programs else ())]
    return " ".join(dict.fromkeys(kinds)) or "yes"


def _supervisor(site: Site, name: str, database: str) -> str:
    return f"""\
[Unit]
Description=benteng pool {site.pool}: supervisor
Requires={name}-cell.socket
After=network-online.target {name}-cell.socket {name}-cell.service
Wants=network-online.target

[Service]
User={name}
Group={name}
WorkingDirectory={site.project}
ExecStart={site.prefix}/bin/benteng worker --pool {site.pool}
# The password of the pool's login, which no other process can read.
LoadCredential=pgpass:/etc/benteng/{site.pool}.pgpass
Environment=PGPASSFILE=%d/pgpass
TimeoutStopSec={site.stop_seconds}
{_store_side(site, database)}
[Install]
WantedBy=multi-user.target
"""


def _keeper(site: Site, database: str) -> str:
    return f"""\
[Unit]
Description=benteng keeper: leases, due jobs, retention
After=network-online.target
Wants=network-online.target

[Service]
User=benteng-keeper
Group=benteng-keeper
WorkingDirectory={site.project}
ExecStart={site.prefix}/bin/benteng keeper
LoadCredential=pgpass:/etc/benteng/keeper.pgpass
Environment=PGPASSFILE=%d/pgpass
TimeoutStopSec=15
{_store_side(site, database)}
[Install]
WantedBy=multi-user.target
"""


def _store_side(site: Site, database: str) -> str:
    """Return the walls of what opens the store: it connects to the store alone, and starts nothing but itself."""
    return f"""\
{COMMON}IPAddressAllow={database}
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
TasksMax=32
ExecPaths=/usr /lib /lib64 {site.prefix}
InaccessiblePaths=-/bin/sh -/bin/bash -/bin/dash -/usr/bin/sh -/usr/bin/bash
"""
