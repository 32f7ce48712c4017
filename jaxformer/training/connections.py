"""TCP connections between process 0 and each other process of a run."""

import hmac
import secrets
import socket
import sys

import jax
from jax._src import distributed

from jaxformer.training import hosts
from jaxformer.workdir import use_compilation_cache

# Time in which a process must connect, and after which a host that does not answer is down.
_CONNECT_SECONDS = 60
_HOST_DOWN_SECONDS = 30


def connect() -> dict[int, socket.socket]:
    """Connects process 0 and every other process."""
    if jax.process_count() == 1:
        return {}
    use_compilation_cache()  # before the first compilation, which all_gather needs
    listener = _listen() if hosts.is_primary() else None
    mine = (listener.getsockname()[1] if listener else 0, secrets.token_hex(16))
    port, token = hosts.all_gather(mine)[0]
    connections, failure = {}, None
    try:
        connections = _accept(listener, token) if listener else {0: _reach(port, token)}
    except OSError as error:
        failure = f"process {jax.process_index()}: {error}"
    failures = [each for each in hosts.all_gather(failure) if each is not None]
    if failures:
        if hosts.is_primary():
            print(
                f"the processes cannot connect to each other ({'; '.join(failures)}); lost or "
                "stuck processes are not noticed",
                file=sys.stderr,
            )
        for connection in connections.values():
            connection.close()
        return {}
    for connection in connections.values():
        connection.setblocking(False)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            milliseconds = 1000 * _HOST_DOWN_SECONDS
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return connections


def _listen() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _accept(listener: socket.socket, token: str) -> dict[int, socket.socket]:
    """Returns the connections to all other processes; strangers do not know the token."""
    connections = {}
    listener.settimeout(_CONNECT_SECONDS)
    with listener:
        while len(connections) < jax.process_count() - 1:
            connection, _ = listener.accept()
            process = _identify(connection, token)
            if process is None:
                connection.close()
            else:
                connections[process] = connection
    return connections


def _identify(connection: socket.socket, token: str) -> int | None:
    connection.settimeout(5)
    try:
        hello = connection.recv(len(token) + 6, socket.MSG_WAITALL)
    except OSError:
        return None
    return int(hello[-6:]) if hmac.compare_digest(hello[:-6], token.encode()) else None


def _reach(port: int, token: str) -> socket.socket:
    # Private, but the only host name that is known to reach process 0 (jax 0.7.2 to 0.12).
    host = (distributed.global_state.coordinator_address or "localhost").rpartition(":")[0]
    connection = socket.create_connection((host.strip("[]"), port), _CONNECT_SECONDS)
    connection.sendall(f"{token}{jax.process_index():6d}".encode())
    return connection
