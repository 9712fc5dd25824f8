"""A connection that is kept is opened again when the server has closed it."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.e2e.fuzz.kept_connection import KeptConnection

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: text/plain\r\n\r\nok"


def answer_once_each(listener: socket.socket, connections: int) -> None:
    """Answer one request on each connection, and close it without a word."""
    for _ in range(connections):
        connection, _ = listener.accept()
        with connection:
            if connection.recv(65_536):
                connection.sendall(ANSWER)


def test_a_server_that_closes_an_idle_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        port = listener.getsockname()[1]
        serving = thread.submit(answer_once_each, listener, 3)
        connection = KeptConnection(f"http://127.0.0.1:{port}")
        request = requests.Request("GET", f"{connection.base}/path?a=b").prepare()
        answers = [connection.send_request(request) for _ in range(3)]
        connection.close()
        serving.result()
    assert [answer.status_code for answer in answers] == [200] * 3
    assert answers[0].content == b"ok"
    assert answers[0].headers["content-type"] == ["text/plain"]


def close_one_connection(listener: socket.socket) -> None:
    listener.accept()[0].close()


def test_a_server_that_never_answers() -> None:
    """What a new connection meets is not tried again."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        port = listener.getsockname()[1]
        closing = thread.submit(close_one_connection, listener)
        connection = KeptConnection(f"http://127.0.0.1:{port}")
        request = requests.Request("GET", f"{connection.base}/").prepare()
        with pytest.raises(ConnectionError):
            connection.send_request(request)
        connection.close()
        closing.result()
