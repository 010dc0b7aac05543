"""A Dockerfile and a compose file for one pool: supervisor and cells in two containers that share one socket.

Both run one image, read-only, without capabilities. The cells' container has no network and never sees a credential;
the supervisor's reaches the store and nothing else. (An engine was not there when this was written: the topology is
tested with namespaces, tests/worker/test_cell_command.py, and the file by its content, tests/ops/test_deploy.py.)
"""

from __future__ import annotations

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
    {network}
    pids_limit: 1024
    mem_limit: {memory_bytes}
    volumes: ["{pool}-run:{directory}"]

  {pool}:
    <<: *walls
    user: "{supervisor_uid}:{supervisor_gid}"
    command: [benteng, worker, --pool, {pool}]
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

# The database joins each of these, and nothing else does.
networks:
  {pool}-store: {{internal: true}}
  keeper-store: {{internal: true}}

volumes:
  {pool}-run: {{}}

# Each file belongs to the user of its service, mode 0400: the client library refuses it otherwise.
secrets:
  {pool}_pgpass: {{file: ./{pool}.pgpass}}
  keeper_pgpass: {{file: ./keeper.pgpass}}
"""


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
            network="# LOW jobs of this pool use the network" if site.network else "network_mode: none",
            stop_seconds=site.stop_seconds,
            memory_bytes=site.memory_bytes,
        ),
    }
