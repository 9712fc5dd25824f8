# ruff: noqa: E501 - a case of a table is one line
"""Every other route, method, path, query, request header and kind of body."""

from __future__ import annotations

from tests.e2e.differential.exchange import JSON, Answer, Exchange, answer, chunked, stream

BOUNDARY = b"Content-Type: multipart/form-data; boundary=----b0UnD"
MP3 = b"Content-Type: audio/mpeg"
OK = answer(b'{"object":"list","data":[] }', JSON)
AUDIO = bytes(n * 7 % 256 for n in range(40_000))


def form(*parts: tuple[str, bytes]) -> bytes:
    """A multipart body; of each part its disposition's parameters and its content."""
    found = (
        f"------b0UnD\r\nContent-Disposition: form-data; {names}\r\n\r\n".encode()
        + content
        + b"\r\n"
        for names, content in parts
    )
    return b"".join(found) + b"------b0UnD--\r\n"


UPLOAD = form(
    ("name=purpose", b"fine-tune"),
    ('name="file"; filename="\xc3\xa9 \\"x\\".jsonl"', b'{"a":1}\n\x00\xff\r\n--b\r\n'),
)

API = [
    Exchange("models", "GET", "/v1/models", (), bare=True, answer=OK),
    Exchange("a model", "GET", "/v1/models/ft:gpt-4o-mini:acme::a1B2", (), bare=True, answer=OK),
    Exchange("a model of an owner", "GET", "/v1/models/meta-llama/Llama-3.3-70B", (), bare=True, answer=OK),
    Exchange("a model deleted", "DELETE", "/v1/models/ft:m", (), bare=True, answer=answer(b'{"deleted":true}', JSON)),
    Exchange("embeddings", target="/v1/embeddings", body=b'{"input" : ["\\u00e9",[1,2]], "dimensions":1.0,"encoding_format":"base64"}'),
    Exchange("completions", target="/v1/completions", body=b'{"prompt":"a","suffix":null,"echo":true}'),
    Exchange("completions, streamed", target="/v1/completions", body=b'{"prompt":"a","stream":true}', answer=stream(b'data: {"choices":[{"text":"a"}]}\n\n', b"data: [DONE]\n\n")),
    Exchange("responses", target="/v1/responses", body=b'{"model":"m","input":[{"role":"user","content":"hi"}],"store":false}'),
    Exchange("responses, streamed", target="/v1/responses", body=b'{"stream":true,"input":"hi"}', answer=stream(b'event: response.created\ndata: {"type":"response.created"}\n\n', b'event: response.completed\ndata: {}\n\n')),
    Exchange("responses, read", "GET", "/v1/responses/resp_1?include%5B%5D=a&include%5B%5D=b&stream=true&starting_after=7", (), bare=True, answer=stream(b"data: {}\n\n")),
    Exchange("responses, cancelled", target="/v1/responses/resp_1/cancel", headers=(), bare=True),
    Exchange("conversations", target="/v1/conversations", body=b'{"metadata":{"a":"b"}}'),
    Exchange("messages of Anthropic", target="/v1/messages?beta=true", headers=(JSON, b"x-api-key: k", b"anthropic-version: 2023-06-01", b"anthropic-beta: a,b"), body=b'{"max_tokens":1,"messages":[{"role":"user","content":"hi"}]}', answer=stream(b"event: ping\ndata: {}\n\n")),
    Exchange("moderations", target="/v1/moderations", body=b'{"input":[{"type":"text","text":"a"}]}'),
    Exchange("files, listed", "GET", "/v1/files?purpose=batch&after=file-1&limit=2&order=asc", (), bare=True, answer=OK),
    Exchange("files, sent", target="/v1/files", headers=(BOUNDARY,), body=UPLOAD),
    Exchange("files, sent in chunks", target="/v1/files", headers=(BOUNDARY,), pieces=tuple(UPLOAD[i : i + 20] for i in range(0, len(UPLOAD), 20))),
    Exchange("files, read", "GET", "/v1/files/file-1/content", (), bare=True, answer=answer(bytes(range(256)), b"Content-Type: application/octet-stream", b'Content-Disposition: attachment; filename="a b.jsonl"')),
    Exchange("files, a part read", "GET", "/v1/files/file-1/content", (b"Range: bytes=5-9", b'If-Range: "e"'), bare=True, answer=answer(b"56789", b"Content-Range: bytes 5-9/256", status=b"206 Partial Content")),
    Exchange("files, unchanged", "GET", "/v1/files/file-1", (b'If-None-Match: "e"',), bare=True, answer=Answer(b'HTTP/1.1 304 Not Modified\r\nETag: "e"\r\n\r\n')),
    Exchange("files, deleted", "DELETE", "/v1/files/a%20b", (), bare=True, answer=Answer(b"HTTP/1.1 204 No Content\r\n\r\n")),
    Exchange("uploads", target="/v1/uploads/u/parts", headers=(BOUNDARY,), body=form(("name=data", AUDIO))),
    Exchange("batches", target="/v1/batches", body=b'{"input_file_id":"f","endpoint":"/v1/chat/completions","completion_window":"24h"}'),
    Exchange("batches, listed", "GET", "/v1/batches?limit=100", (), bare=True, answer=OK),
    Exchange("batches, cancelled", target="/v1/batches/b/cancel", headers=(), bare=True),
    Exchange("fine-tuning", target="/v1/fine_tuning/jobs", body=b'{"training_file":"f","hyperparameters":{"n_epochs":2.0}}'),
    Exchange("fine-tuning events", "GET", "/v1/fine_tuning/jobs/j/events?stream=true", (), bare=True, answer=stream(b"data: {}\n\n")),
    Exchange("speech", target="/v1/audio/speech", body=b'{"input":"\\u00e9","voice":"alloy","response_format":"mp3"}', answer=answer(AUDIO, MP3)),
    Exchange("speech in chunks", target="/v1/audio/speech", body=b"{}", answer=chunked(*(AUDIO[i : i + 4096] for i in range(0, len(AUDIO), 4096)), headers=(MP3,))),
    Exchange("transcriptions", target="/v1/audio/transcriptions", headers=(BOUNDARY,), body=form(("name=model", b"whisper-1"), ('name=file; filename="a.wav"', AUDIO)), answer=answer(b"1\n00:00:00,000 --> 00:00:01,000\nh\xc3\xa9\n", b"Content-Type: text/plain; charset=utf-8")),
    Exchange("translations", target="/v1/audio/translations", headers=(BOUNDARY,), body=form(("name=file; filename=a", AUDIO))),
    Exchange("images", target="/v1/images/generations", body=b'{"prompt":"a","size":"1024x1024"}', answer=answer(b'{"data":[{"b64_json":"' + b"A" * 100_000 + b'"}]}', JSON)),
    Exchange("image edits", target="/v1/images/edits", headers=(BOUNDARY,), body=form(("name=image[]; filename=a.png", AUDIO), ("name=image[]; filename=b.png", b"\x89PNG"))),
    Exchange("videos", "GET", "/v1/videos/v/content?variant=thumbnail", (), bare=True, answer=answer(AUDIO, b"Content-Type: video/mp4")),
    Exchange("vector stores", target="/v1/vector_stores/vs/search", body=b'{"query":"a","filters":{"type":"eq","key":"k","value":1.0}}'),
    Exchange("assistants", target="/v1/threads/t/runs", headers=(JSON, b"OpenAI-Beta: assistants=v2"), body=b'{"assistant_id":"a","stream":true}', answer=stream(b"event: thread.run.created\ndata: {}\n\n", b"event: done\ndata: [DONE]\n\n")),
    Exchange("organization usage", "GET", "/v1/organization/usage/completions?start_time=1&group_by[]=model&group_by[]=user_id", (), bare=True, answer=OK),
    Exchange("realtime sessions", target="/v1/realtime/client_secrets", body=b'{"session":{"type":"realtime"}}'),
    Exchange("an SDP offer", target="/v1/realtime/calls", headers=(b"Content-Type: application/sdp",), body=b"v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\n", answer=answer(b"v=0\r\n", b"Content-Type: application/sdp", b"Location: /v1/realtime/calls/c", status=b"201 Created")),
    Exchange("rerank of others", target="/v1/rerank", body=b'{"query":"a","documents":["b"]}'),
    Exchange("tokenize of others", target="/tokenize", body=b'{"prompt":"a"}'),
    Exchange("metrics of others", "GET", "/v1/metrics/prometheus", (), bare=True, answer=answer(b"# HELP a\n", b"Content-Type: text/plain; version=0.0.4")),
]  # fmt: skip

CHAT = [
    Exchange("stored completions", "GET", "/v1/chat/completions?limit=2&metadata[a]=b", (), bare=True, answer=OK),
    Exchange("a stored completion", "GET", "/v1/chat/completions/chatcmpl-1", (), bare=True, answer=OK),
    Exchange("its messages", "GET", "/v1/chat/completions/chatcmpl-1/messages?order=desc", (), bare=True, answer=OK),
    Exchange("its metadata", target="/v1/chat/completions/chatcmpl-1", body=b'{"metadata":{"a":"b"}}'),
    Exchange("deleted", "DELETE", "/v1/chat/completions/chatcmpl-1", (), bare=True),
    Exchange("a trailing slash", target="/v1/chat/completions/", body=b'{"messages":[]}'),
    Exchange("another method", "PUT", "/v1/chat/completions", body=b'{"messages":[]}'),
    Exchange("asked for its options", "OPTIONS", "/v1/chat/completions", (b"Origin: http://localhost:3000", b"Access-Control-Request-Method: POST", b"Access-Control-Request-Headers: authorization,x-om-thread"), bare=True, answer=Answer(b"HTTP/1.1 204 No Content\r\nAllow: POST\r\n\r\n")),
    Exchange("asked for its head", "HEAD", "/v1/chat/completions", (), bare=True, answer=Answer(b"HTTP/1.1 405 Method Not Allowed\r\nAllow: POST\r\nContent-Length: 99\r\n\r\n")),
    Exchange("without /v1", target="/chat/completions", body=b'{"messages":[]}'),
    Exchange("with a query", target="/v1/chat/completions?api-version=2024-10-21&q=%C3%A9&q=&%20", body=b'{"messages":[]}'),
    Exchange("in capitals", target="/v1/Chat/Completions", body=b'{"messages":[]}'),
    Exchange("escaped", target="/v1/chat/%63ompletions", body=b'{"messages":[]}'),
    Exchange("with a parameter", target="/v1/chat/completions;v=1", body=b'{"messages":[]}'),
]  # fmt: skip

PATHS = [
    "/v1", "/v1/", "/models", "/models/", "/v1/models/", "/v1/v1/models", "/v2/models", "/v10", "/v1beta/openai/models", "/v1.1/models",
    "/v1/models/ft:gpt-4o%3Aacme%20x~!$&'()*+,;=:@", "/v1/a..b/.c/...", "/v1/caf%C3%A9", "/v1/%E2%82%AC/%ff%FE", "/v1/a|b\"<>{}^`", "/v1/a%25b%2525",
    "/v1/a+b", "/v1/a=b&c", "/omega", "/healthzz", "/healthz/", "/v1/healthz", "/v1/om/v1/threads", "/favicon.png", "/v1/" + "a/" * 500 + "b",
]  # fmt: skip
QUERIES = [
    "a=1&b=2&a=3", "a=", "a", "=", "&&", "a=/../%2F//&b=?", "a=|\"<>{}^`[]'\\", "key=AIza+b%20c%2Bd", "a=%", "a=%zz%0", "%00=%0d%0a", "q=" + "x" * 20_000,
]  # fmt: skip

HEADERS = [
    ("of the OpenAI SDK", (b"Accept: application/json", b"User-Agent: OpenAI/Python 2.54.0", b"X-Stainless-Lang: python", b"X-Stainless-Package-Version: 2.54.0", b"X-Stainless-Async: async:asyncio", b"x-stainless-retry-count: 0", b"x-stainless-read-timeout: 600", b"Authorization: Bearer sk-a", b"Accept-Encoding: gzip, deflate", b"OpenAI-Organization: org", b"OpenAI-Project: proj", b"Idempotency-Key: k")),
    ("none", ()),
    ("empty", (b"X-Empty:", b"X-Blank:   ", b"X-Empty:", b"Accept:", b"User-Agent:")),
    ("twice, in both orders", (b"X-A: 1", b"X-B: 1", b"X-a: 2", b"x-b: 0", b"X-A: 1")),
    ("cookies", (b'Cookie: a=b; c="d e"; $x=1', b"Cookie: e=f")),
    ("UTF-8", ("X-A: hé €".encode(),)),
    ("Latin-1", (b"X-A: h\xe9 \xff", b"X-B: \xe9")),
    ("tabs and spaces", (b"X-A: \t a\tb  c \t",)),
    ("odd names", (b"X!#$%&'*+.^_`|~9: 1", b"_: 2", b"9: 3", b"x_om_thread: t")),
    ("many", tuple(b"X-%d: %d" % (n, n) for n in range(60))),
    ("long", (b"X-Long: " + b"a" * 16_000,)),
    ("of the connection", (b"Connection: keep-alive, X-Hop", b"X-Hop: 1", b"Keep-Alive: timeout=5", b"TE: trailers", b"Proxy-Connection: keep-alive", b"Proxy-Authorization: Basic dTpw")),
    ("of the connection, twice", (b"Connection: X-Hop", b"connection: x-hip", b"x-hop: 1", b"X-HIP: 1", b"X-Stays: 1")),
    ("HTTP/2 offered", (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__")),
    ("of proxies on the way", (b"X-Forwarded-For: 1.2.3.4, 5.6.7.8", b"X-Forwarded-Host: evil.example", b"X-Forwarded-Proto: https", b"Forwarded: for=1.2.3.4;host=evil", b"Via: 1.1 x", b"X-Real-IP: 1.2.3.4", b"X-Original-URL: /admin", b"X-HTTP-Method-Override: DELETE", b"Max-Forwards: 1")),
    ("traces", (b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"tracestate: a=b", b"baggage: k=v")),
    ("of a browser", (b"Origin: https://app", b"Referer: https://app/x?y", b"Sec-Fetch-Mode: cors", b"Sec-Fetch-Site: cross-site", b"DNT: 1", b"Priority: u=1, i", b"Cache-Control: no-cache", b"Pragma: no-cache")),
    ("of gateways", (b"x-litellm-tags: a", b"HTTP-Referer: https://app", b"X-Title: \xc3\xa9", b"x-portkey-config: {}", b"Helicone-Auth: Bearer h", b"cf-aig-authorization: Bearer c", b"x-session-id: ses_1")),
    ("expecting 100", (b"Expect: 100-continue",)),
]  # fmt: skip

METHODS = [
    "GET",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "OPTIONS",
    "PROPFIND",
    "QUERY",
    "REPORT",
    "LOCK",
    "TRACE",
]


def methods() -> list[Exchange]:
    done = answer(b"\x00 done", b"Content-Type: application/octet-stream")
    body = b"\x00\xff\r\n\r\nGET / HTTP/1.1\r\n\r\n"
    found = []
    for method in METHODS:
        found.append(
            Exchange(f"{method} without a body", method, "/v1/x", (), bare=True, answer=done)
        )
        found.append(Exchange(f"{method} with nothing", method, "/v1/x", (), answer=done))
        found.append(Exchange(f"{method} with a body", method, "/v1/x", (), body, answer=done))
        found.append(
            Exchange(
                f"{method} in chunks", method, "/v1/x", (), pieces=(body, b"a", body), answer=done
            )
        )
    return [
        *found,
        Exchange("HEAD", "HEAD", "/v1/models", (), bare=True, answer=Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\nETag: e\r\n\r\n")),
        Exchange("HEAD of chunks", "HEAD", "/v1/models", (), bare=True, answer=Answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")),
        Exchange("HEAD of nothing known", "HEAD", "/v1/models", (), bare=True, answer=Answer(b"HTTP/1.1 404 Not Found\r\n\r\n")),
        Exchange("chunks of nothing", target="/v1/files", headers=(), pieces=(), answer=done),
    ]  # fmt: skip


def request_headers() -> list[Exchange]:
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    return [
        *(Exchange(f"headers: {name}", headers=(JSON, *found), body=body) for name, found in HEADERS),
        *(Exchange(f"headers elsewhere: {name}", target="/v1/embeddings", headers=found, body=body) for name, found in HEADERS),
    ]  # fmt: skip


def addresses() -> list[Exchange]:
    return [
        *(Exchange(f"path {path[:60]}", "GET", path, (), bare=True, answer=OK) for path in PATHS),
        *(
            Exchange(f"query {query[:60]}", "GET", f"/v1/models?{query}", (), bare=True, answer=OK)
            for query in QUERIES
        ),
    ]


def routes() -> list[Exchange]:
    chat = [exchange.named(f"chat route: {exchange.name}") for exchange in CHAT]
    return [*API, *chat, *methods(), *request_headers(), *addresses()]
