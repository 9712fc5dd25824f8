"""The end of a chat completion's stream: the line `data: [DONE]`."""

from __future__ import annotations

DONE = b"[DONE]"  # the data of the last event


class DoneFinder:
    """Finds where a stream's `data: [DONE]` begins, without parsing the stream.

    It costs one search a chunk: a model's stream has thousands of chunks and one end.
    """

    _REACH = len(
        b"\ndata: [DONE"
    )  # bytes of an unfinished `[DONE]` line that may lie in earlier chunks

    def __init__(self) -> None:
        self._before = b"\n"

    def feed(self, chunk: bytes) -> int | None:
        """Return the offset in this chunk where the line `[DONE]` starts; 0 if it began in an
        earlier one. None: it is not here.

        The line counts as found with its `]`: the bytes before it, in earlier chunks, end no
        stream.
        """
        window = self._before + chunk
        at = self._search(window)
        found = None if at is None else max(0, at - len(self._before))
        self._before = b"" if found is not None else window[-self._REACH :]
        return found

    @staticmethod
    def _search(window: bytes) -> int | None:
        at = window.find(DONE)
        while at >= 0:
            for opening in (b"data: ", b"data:"):
                start = at - len(opening)
                if start > 0 and window.startswith(opening, start) and window[start - 1] in b"\r\n":
                    return start
            at = window.find(DONE, at + 1)
        return None
