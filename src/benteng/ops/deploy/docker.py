"""A Dockerfile and a compose file for one pool: supervisor and cells in two containers that share one socket.

Both run one image, read-only, without capabilities. The cells' container never sees a credential, and has no network
but one of its own where the pool has `egress`; the supervisor's reaches the store and nothing else. Where cells need
namespaces of users, which the engine's own filter forbids, another filter stands in its place. (An engine was not there
when this was written: the topology is tested with namespaces, tests/worker/test_cell_command.py, the filter by a
process that has it, and the file by its content, tests/ops/test_deploy.py.)
"""

from __future__ import annotations

import json

from benteng.ops.deploy.site import Site

DOCKERFILE = """\
# Everything that the application needs, in /opt/app; see requirements.txt for your own dependencies.
FROM python:3.13-slim AS build
WORKDIR /build
COPY requirements.txt .
RUN python -m venv /opt/app && /opt/app/bin/pip install --no-cache-dir --only-binary :all: -r requirements.txt

FROM python:3.13-slim
COPY --from=build /opt/app /opt/app
COPY . {project}
# The directory of the pool's socket: the cells' user writes it, the supervisor's only connects.
RUN mkdir -p {directory} && chown {uid}:{gid} {directory} && chmod 0755 {directory}
WORKDIR {project}
ENV PATH=/opt/app/bin:/usr/local/bin:/usr/bin PYTHONDONTWRITEBYTECODE=1
USER {uid}:{gid}
"""

COMPOSE = """\
# docker compose up; stops in the order that drains: the supervisor first.
x-walls: &walls
  build: .
  read_only: true
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  tmpfs: ["/tmp:size=256m,mode=1777"]
  restart: unless-stopped

services:
  {pool}-cell:
    <<: *walls
    user: "{cell_uid}:{cell_gid}"
    group_add: ["{supervisor_gid}"]
    command: [benteng, cell, --listen, "unix:{socket}", --supervisor, "{supervisor_uid}", --group, "{supervisor_gid}"]
    {network}{walls}
    pids_limit: 1024
    mem_limit: {memory_bytes}
    volumes: ["{pool}-run:{directory}"]

  {pool}:
    <<: *walls
    user: "{supervisor_uid}:{supervisor_gid}"
    # What is refused stays refused until somebody mends it, and each start is written into the log: one an hour.
    command: [benteng, worker, --pool, {pool}, --linger, "3600"]
    environment: {{PGPASSFILE: /run/secrets/{pool}_pgpass}}
    secrets: [{pool}_pgpass]
    networks: [{pool}-store]
    pids_limit: 32
    stop_grace_period: {stop_seconds}s
    depends_on: [{pool}-cell]
    volumes: ["{pool}-run:{directory}:ro"]

  keeper:
    <<: *walls
    user: "65532:65532"
    command: [benteng, keeper]
    environment: {{PGPASSFILE: /run/secrets/keeper_pgpass}}
    secrets: [keeper_pgpass]
    networks: [keeper-store]
    pids_limit: 32

# The database joins the internal ones, and nothing else does.
networks:
  {pool}-store: {{internal: true}}
  keeper-store: {{internal: true}}{egress}

volumes:
  {pool}-run: {{}}

# Each file belongs to the user of its service, mode 0400: the client library refuses it otherwise.
secrets:
  {pool}_pgpass: {{file: ./{pool}.pgpass}}
  keeper_pgpass: {{file: ./keeper.pgpass}}
"""

NAMESPACES = """
    # The engine's own filter lets nobody make namespaces of users, and AppArmor's profile no mounts in them.
    security_opt: ["no-new-privileges:true", "seccomp=./{pool}-cell.seccomp.json", "apparmor=unconfined"]"""

FORBIDDEN = (
    *("acct", "bpf", "fanotify_init", "perf_event_open", "quotactl", "quotactl_fd", "syslog", "vhangup"),
    *("add_key", "keyctl", "request_key", "open_by_handle_at", "name_to_handle_at", "userfaultfd"),
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot"),
    *("clock_settime", "clock_adjtime", "settimeofday", "iopl", "ioperm", "modify_ldt", "swapon", "swapoff"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "sethostname", "setdomainname", "setns", "pivot_root"),
)
"""What neither warden, zygote nor broker calls. A cell's own filter, which is narrower, is put up behind this one."""

FILTER = json.dumps(
    {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": sorted(FORBIDDEN), "action": "SCMP_ACT_ERRNO", "errnoRet": 1}],
    },
    indent=2,
)


def files(site: Site) -> dict[str, str]:
    """Return file names and texts."""
    directory = site.socket.parent
    uid, gid = site.cells
    return {
        "Dockerfile": DOCKERFILE.format(project=site.project, directory=directory, uid=uid, gid=gid),
        "compose.yaml": COMPOSE.format(
            pool=site.pool,
            socket=site.socket,
            directory=directory,
            cell_uid=uid,
            cell_gid=gid,
            supervisor_uid=site.supervisor[0],
            supervisor_gid=site.supervisor[1],
            network=_network(site),
            walls=NAMESPACES.format(pool=site.pool) if _has_namespaces(site) else "",
            egress=f"\n  {site.pool}-egress: {{}} # the way out of its egress broker" if site.egress else "",
            stop_seconds=site.stop_seconds,
            memory_bytes=site.memory_bytes,
        ),
        **({f"{site.pool}-cell.seccomp.json": FILTER} if _has_namespaces(site) else {}),
    }


def _network(site: Site) -> str:
    if site.egress:
        return f"networks: [{site.pool}-egress]"
    return "# LOW jobs of this pool use the network" if site.network else "network_mode: none"


def _has_namespaces(site: Site) -> bool:
    """Whether cells need namespaces of users: for names and a network of their own; so that programs end with them."""
    return site.egress or site.programs
