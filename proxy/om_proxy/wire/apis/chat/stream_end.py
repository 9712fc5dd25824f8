"""Find the end of a chat completion's stream: the line `data: [DONE]`."""

from __future__ import annotations

DONE = b"[DONE]"  # the data of the last event


class DoneFinder:
    """A search for a stream's `data: [DONE]`, without parsing the stream.

    It costs one search a chunk: a model's stream has thousands of chunks and one end.
    """

    # bytes of an unfinished `[DONE]` line that may be in earlier chunks
    _MAX_UNFINISHED_BYTES = len(b"\ndata: [DONE")

    def __init__(self) -> None:
        self._before = b"\n"

    def feed(self, chunk: bytes) -> int | None:
        """Return the offset in this chunk where the line `[DONE]` starts; 0: it began in an earlier
        chunk. None: it is not in this chunk.

        The line is found when its `]` comes: the bytes before it, in earlier chunks, end no stream.
        """
        window = self._before + chunk
        line_start = self._find_line(window)
        if line_start is None:
            self._before = window[-self._MAX_UNFINISHED_BYTES :]
            return None
        offset = max(0, line_start - len(self._before))
        self._before = b""
        return offset

    @staticmethod
    def _find_line(window: bytes) -> int | None:
        data_start = window.find(DONE)
        while data_start >= 0:
            for opening in (b"data: ", b"data:"):
                start = data_start - len(opening)
                if start > 0 and window.startswith(opening, start) and window[start - 1] in b"\r\n":
                    return start
            data_start = window.find(DONE, data_start + 1)
        return None
