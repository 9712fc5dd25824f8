"""Ready-made doubles, for the demo, this project's tests and your own: a scripted model server and
a loopback server.

`ScriptedServer` answers like the model servers of OpenAI and Anthropic (chat completions, the
Responses API, the Messages API), by rules, without a key.
`serve_on_loopback` runs any ASGI application on a free loopback port. A client that is tested with
them needs no network:

    >>> import asyncio, httpx
    >>> from om_proxy.testing import ScriptedServer, serve_on_loopback
    >>> async def ask(text: str) -> str:
    ...     models = ScriptedServer({"Ping?": {"role": "assistant", "content": "Pong."}})
    ...     request = {"model": "any", "messages": [{"role": "user", "content": text}]}
    ...     async with serve_on_loopback(models) as url:
    ...         async with httpx.AsyncClient(trust_env=False) as client:
    ...             response = await client.post(f"{url}/v1/chat/completions", json=request)
    ...     return response.json()["choices"][0]["message"]["content"]
    >>> asyncio.run(ask("Ping?"))
    'Pong.'
    >>> asyncio.run(ask("My boat is blue."))
    'Noted: My boat is blue.'
"""

from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ACTOR, OBSERVER, REFLECTOR, Fault, ScriptedServer

__all__ = ["ACTOR", "OBSERVER", "REFLECTOR", "Fault", "ScriptedServer", "serve_on_loopback"]
