"""One HTTP/1.1 connection that is kept, with a deadline for the whole exchange.

The standard library reads headers with its e-mail parser, which costs more than everything else
about a request together; this reads the three headers it needs.
"""

import base64
import http.client
import io
import json
import socket
import time
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

_MAX_LINE_BYTES = 1 << 16
_MAX_HEADERS = 200
_LONGEST_WAIT = 2e6
"""Seconds. Sockets take a timeout of 2**31 milliseconds at most."""


class WireError(Exception):
    """The exchange failed in a way that another attempt may not."""


class TooSlow(WireError):
    """No whole reply in the time there was."""


class TooLong(WireError):
    """A reply of more bytes than are read."""


class _Closed(Exception):
    """The other side closed the connection before it said anything."""


class Reply(NamedTuple):
    """A whole reply."""

    status: int
    retry_after: str | None
    body: bytes


class _Incoming(io.RawIOBase):
    """The bytes of a socket up to a deadline, however few of them come at a time."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self.deadline = 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._source.settimeout(_left(self.deadline))
        return self._source.recv_into(buffer)


class Connection:
    """A connection to `base_url`, made when needed and made anew after any failure.

    An https address is asked through `HTTPS_PROXY`, unless `NO_PROXY` names it.
    """

    def __init__(self, base_url: str, key: str | None, *, most_bytes: int = 64 << 20) -> None:
        parts = urlsplit(base_url)
        self._most_bytes = most_bytes
        self._host = parts.hostname or ""
        self._secure = parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._prefix = parts.path.rstrip("/")
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        self._head = (
            f"Host: {parts.netloc.rpartition('@')[2]}\r\nAccept: application/json\r\n"
            f"Accept-Encoding: identity\r\nContent-Type: application/json\r\n{authorization}"
        )
        self._socket: socket.socket | None = None
        self._file: io.BufferedReader[_Incoming] | None = None

    def exchange(self, method: str, path: str, payload: object, seconds: float) -> Reply:
        """Send one request and read the whole reply.

        Raises:
            WireError: No connection, no reply within `seconds`, half a reply, or one too long.
        """
        body = b"" if payload is None else json.dumps(payload).encode()
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}"
        message = f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
        deadline = time.monotonic() + seconds
        reused = self._socket is not None
        try:
            try:
                return self._exchange(message, deadline)
            except _Closed:
                self.close()
                if not reused:
                    raise
            # The server had closed an idle connection: not a failure of this request.
            return self._exchange(message, deadline)
        except TimeoutError as error:
            self.close()
            raise TooSlow(f"no whole reply within {seconds:g} s") from error
        except TooLong:
            self.close()
            raise
        except (OSError, ValueError, http.client.HTTPException, _Closed) as error:
            self.close()
            raise WireError(f"{type(error).__name__.strip('_')}: {error}") from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._socket is not None:
            self._socket.close()
        self._socket = self._file = None

    def _exchange(self, message: bytes, deadline: float) -> Reply:
        if self._socket is None or self._file is None:
            self._socket = self._connect(deadline)
            self._file = io.BufferedReader(_Incoming(self._socket))
        self._file.raw.deadline = deadline
        self._socket.settimeout(_left(deadline))
        try:
            self._socket.sendall(message)
            first = self._file.readline(_MAX_LINE_BYTES)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _Closed("connection lost") from error
        if not first:
            raise _Closed("connection closed without a reply")
        status = _status(first)
        headers = self._headers()
        while 100 <= status < 200:
            status = _status(self._line())
            headers = self._headers()
        body = self._body(headers)
        if headers.get(b"connection", b"").lower() == b"close" or first.startswith(b"HTTP/1.0"):
            self.close()
        after = headers.get(b"retry-after")
        return Reply(status, after.decode("latin-1") if after is not None else None, body)

    def _connect(self, deadline: float) -> socket.socket:
        if not self._secure:
            made = socket.create_connection((self._host, self._port), timeout=_left(deadline))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
        proxy = _proxy_to(f"{self._host}:{self._port}")
        host, port = (proxy.hostname, proxy.port or 80) if proxy else (self._host, self._port)
        connection = http.client.HTTPSConnection(host or "", port, timeout=_left(deadline))
        if proxy:
            connection.set_tunnel(self._host, self._port, _login(proxy))
        connection.connect()
        return connection.sock

    def _line(self) -> bytes:
        assert self._file is not None
        line = self._file.readline(_MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise ValueError("the reply was cut off")
        return line

    def _headers(self) -> dict[bytes, bytes]:
        headers: dict[bytes, bytes] = {}
        for _ in range(_MAX_HEADERS):
            line = self._line().strip()
            if not line:
                return headers
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        raise ValueError(f"more than {_MAX_HEADERS} headers")

    def _body(self, headers: dict[bytes, bytes]) -> bytes:
        if headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
            return self._chunks()
        if b"content-length" in headers:
            return self._exactly(int(headers[b"content-length"]))
        assert self._file is not None
        body = self._file.read(self._most_bytes + 1)
        self._bound(len(body))
        self.close()
        return body

    def _chunks(self) -> bytes:
        body = bytearray()
        while size := int(self._line().partition(b";")[0], 16):
            body += self._exactly(size, len(body))
            self._line()
        self._headers()  # trailers
        return bytes(body)

    def _exactly(self, size: int, before: int = 0) -> bytes:
        if size < 0:
            raise ValueError(f"a length of {size}")
        self._bound(before + size)
        assert self._file is not None
        received = self._file.read(size)
        if len(received) < size:
            raise ValueError("the reply was cut off")
        return received

    def _bound(self, size: int) -> None:
        if size > self._most_bytes:
            raise TooLong(f"a reply of more than {self._most_bytes} bytes")


def _status(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise ValueError(f"not HTTP: {line[:40]!r}")
    return int(rest[:3])


def _proxy_to(address: str) -> SplitResult | None:
    """Whom the environment has https addresses asked through; those of http are asked directly."""
    proxy = getproxies().get("https")
    if not proxy or proxy_bypass(address):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _login(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return min(left, _LONGEST_WAIT)
