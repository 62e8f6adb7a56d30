"""One HTTP connection that is kept, with a deadline for the whole exchange."""

import http.client
import json
import socket
import ssl
import time
from typing import NamedTuple
from urllib.parse import urlsplit

_READ_BYTES = 1 << 16
_MAX_REPLY_BYTES = 64 << 20


class WireError(Exception):
    """The exchange failed in a way that another attempt may not."""


class Reply(NamedTuple):
    """A whole reply."""

    status: int
    retry_after: str | None
    body: bytes


class Connection:
    """A connection to `base_url`, made when needed and made anew after any failure."""

    def __init__(self, base_url: str, key: str | None) -> None:
        parts = urlsplit(base_url)
        self._host = parts.hostname or ""
        self._port = parts.port
        self._secure = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._http: http.client.HTTPConnection | None = None

    def exchange(self, method: str, path: str, payload: object, seconds: float) -> Reply:
        """Send one request and read the whole reply.

        Raises:
            WireError: No connection, no reply within `seconds`, or half a reply.
        """
        body = None if payload is None else json.dumps(payload).encode()
        deadline = time.monotonic() + seconds
        reused = self._http is not None
        try:
            return self._exchange(method, path, body, deadline)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
            self.close()
            if not reused:  # else the server had closed an idle connection: not its failure
                raise WireError(f"connection lost: {error}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise WireError(_reason(error, seconds)) from error
        try:
            return self._exchange(method, path, body, deadline)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise WireError(_reason(error, seconds)) from error

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def _exchange(self, method: str, path: str, body: bytes | None, deadline: float) -> Reply:
        if self._http is None:
            self._http = self._connect(deadline)
        assert self._http.sock is not None
        self._http.sock.settimeout(_left(deadline))
        self._http.request(method, self._prefix + path, body=body, headers=self._headers)
        response = self._http.getresponse()
        held = self._http.sock
        chunks: list[bytes] = []
        size = 0
        while True:
            if held is not None:
                held.settimeout(_left(deadline))
            chunk = response.read1(_READ_BYTES)
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
            if size > _MAX_REPLY_BYTES:
                raise http.client.HTTPException(f"a reply of more than {_MAX_REPLY_BYTES} bytes")
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        response.read()  # at its end already; this lets go of the connection
        if response.will_close:
            self.close()
        return Reply(response.status, response.getheader("Retry-After"), b"".join(chunks))

    def _connect(self, deadline: float) -> http.client.HTTPConnection:
        timeout = _left(deadline)
        made: http.client.HTTPConnection
        if self._secure:
            context = ssl.create_default_context()
            made = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=context
            )
        else:
            made = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        made.connect()
        return made


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _reason(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no whole reply within {seconds:g} s"
    if isinstance(error, http.client.IncompleteRead):
        return "the reply was cut off"
    if isinstance(error, socket.gaierror):
        return f"no such host: {error}"
    return f"{type(error).__name__}: {error}"
