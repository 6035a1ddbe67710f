"""Where a Ray cluster is: addresses that are none are refused soon, and a refusal names its causes.

Ray itself tries a wrong address for a minute or more. So the address is greeted first, as a client
of gRPC greets a server. Nothing of Ray is needed for that.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from outlast.errors import OutlastError, bad_value

#: seconds until an address that does not connect is given up, and one that connects and is silent
CONNECT, ANSWER = 5.0, 10.0
#: the port of a head, unless it is said
PORT = 6379
#: the first words of a client of HTTP/2, which gRPC is made of: its preface and empty settings
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
#: the bytes before each frame of HTTP/2; which of them is its kind; the kind of settings, which a
#: server sends first
FRAME, KIND, SETTINGS = 9, 3, 4
#: what Ray reads of the environment
MODE, TOKEN, TLS = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USE_TLS"
PORTS = (
    f"the port of its head is {PORT} by default; 8265 is the dashboard, and 10001 is the port of "
    f"Ray's client"
)


def check_address(address: str) -> None:
    """Raise soon if no Ray cluster can be at an address."""
    if address in ("auto", "local"):
        return
    accepted = f"auto, local or HOST:PORT, such as 10.0.0.1:{PORT}"
    if "://" in address:
        raise bad_value("ray", address, f"{accepted}: Ray's client (ray://) is not supported")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise bad_value("ray", address, accepted)
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT)
    except (OSError, UnicodeError) as error:  # the second for a host that is no name
        raise _absent(address, getattr(error, "strerror", None) or str(error)) from None
    with connection:
        if not _encrypted() and not _speaks_grpc(connection):
            raise OutlastError(
                f"ray={address}: what answers there is not the head of a Ray cluster: {PORTS}"
            )


def _encrypted() -> bool:
    """Whether Ray is to use TLS: such a server says nothing to a plain greeting."""
    return os.environ.get(TLS, "0").lower() in ("1", "true")


def _speaks_grpc(connection: socket.socket) -> bool:
    """Whether a server answers a greeting of HTTP/2 as a server of gRPC does."""
    connection.settimeout(ANSWER)
    answer = b""
    try:
        connection.sendall(GREETING)
        while len(answer) < FRAME and (more := connection.recv(FRAME - len(answer))):
            answer += more
    except OSError:  # silent for too long, or it hung up
        return False
    return len(answer) == FRAME and answer[KIND] == SETTINGS


def _absent(address: str, reason: str) -> OutlastError:
    return OutlastError(
        f"ray={address}: no Ray cluster answers there ({reason}). Start one with 'ray start "
        f"--head', or give --ray local for one on this machine"
    )


def connection_error(address: str, error: Exception) -> OutlastError:
    """Why Ray could not connect, though the address is one and, as HOST:PORT, was answered."""
    reason = (str(error) or type(error).__name__).splitlines()[0]
    if address == "local":
        return OutlastError(f"ray=local: cannot start Ray on this machine ({reason})")
    if type(error).__name__ == "AuthenticationError":
        reason = reason.split(". ")[0]  # the rest is about Ray's own commands
        return OutlastError(
            f"ray={address}: {reason}. Give the token of the cluster in {TOKEN} or in "
            f"~/.ray/auth_token; all nodes must have the same one"
        )
    token = f"wants a token: set {MODE}=token, and have the same token here and on every node"
    if address == "auto":
        return OutlastError(f"{_absent(address, reason)}. If one does run here, perhaps it {token}")
    return OutlastError(
        f"ray={address}: a server answers there, but Ray does not get through ({reason}). Either "
        f"it is another port of Ray ({PORTS}), or the cluster {token}"
    )


@contextmanager
def token_of_this_process() -> Iterator[None]:
    """Start a local cluster with a token that ends with it.

    The servers of a new cluster can be reached from the network. So Ray protects it with a token.
    It would write that token to the home folder, and later commands of Ray, which find it there,
    would behave in another way. A token in the environment is not written.
    """
    before = {name: os.environ.get(name) for name in (MODE, TOKEN)}
    os.environ.setdefault(TOKEN, _token())
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@cache
def _token() -> str:
    """One for the whole process: Ray reads it once."""
    return secrets.token_hex(32)
