"""A ledger in a database of a test server, installed as a person would, and a login for every facet."""

from __future__ import annotations

from benteng.store.postgres import migrate, roles
from tests.support.servers import Server

LOGINS = {
    "denial_producer": roles.Login("denial_producer", "producer"),
    "denial_patch": roles.Login("denial_patch", "consumer", "patch"),
    "denial_bill": roles.Login("denial_bill", "consumer", "bill"),
    "denial_keeper": roles.Login("denial_keeper", "keeper"),
    "denial_operator": roles.Login("denial_operator", "operator"),
    "denial_auditor": roles.Login("denial_auditor", "auditor"),
    "denial_sealer": roles.Login("denial_sealer", "sealer"),
    "denial_approver": roles.Login("denial_approver", "approver"),
}


def fresh(server: Server) -> str:
    """Return the name of a new database with a ledger in it."""
    dbname = server.fresh("denial", lambda name: install(server, name))
    roles.install(server.dsn(dbname=dbname))  # what the database itself gives to whom is not in a template
    return dbname


def install(server: Server, dbname: str) -> None:
    """Install roles, tables and verbs, and make the logins. The logins are the cluster's: once a server."""
    dsn = server.dsn(dbname=dbname)
    roles.install(dsn)
    migrate.up(dsn, "dev")
    for login in LOGINS.values():
        with server.connect() as connection:  # left behind by an earlier session on a server that was given to us
            connection.execute(f"drop role if exists {login.name}".encode())
        roles.create_login(dsn, login, server.password)
