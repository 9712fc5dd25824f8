# ruff: noqa: E501 - a case of a table is one line
"""Chat completions as clients send them: every documented field (`test_published.py` asks the SDK
for them), and what is none.

Each body is the text a client wrote, not a re-serialised object: spaces, key order, numbers and
escapes are what is compared.
"""

from __future__ import annotations

from tests.e2e.differential.exchange import COMPLETED, STREAMED, Exchange

HI = '[{"role":"user","content":"hi"}]'

# One member beside `model` and `messages`.
MEMBERS = [
    ("audio", '"modalities":["text","audio"],"audio":{"voice":"alloy","format":"wav"}'),
    ("audio, own voice", '"modalities":["audio","text"],"audio":{"voice":{"id":"voice_1"},"format":"pcm16"}'),
    ("frequency_penalty", '"frequency_penalty":-2.0'),
    ("function_call, auto", '"functions":[{"name":"f","parameters":{"type":"object","properties":{}}}],"function_call":"auto"'),
    ("function_call, named", '"functions":[{"name":"f","description":"d"}],"function_call":{"name":"f"}'),
    ("logit_bias", '"logit_bias":{"50256":-100,"1734":100,"2":0}'),
    ("logit_bias as a float", '"logit_bias":{"2":0.50}'),
    ("logprobs", '"logprobs":true,"top_logprobs":20'),
    ("logprobs off", '"logprobs":false,"top_logprobs":null'),
    ("max_completion_tokens", '"max_completion_tokens":100000'),
    ("max_tokens", '"max_tokens":1'),
    ("metadata", '"metadata":{"om":"\\u00e9","a b":"c","":""}'),
    ("metadata null", '"metadata":null'),
    ("modalities", '"modalities":["text"]'),
    ("moderation", '"moderation":{"model":"omni-moderation-latest","policy":{"input":{"mode":"block"},"output":{"mode":"score"}}}'),
    ("moderation without a policy", '"moderation":{"policy":null,"model":"omni-moderation-latest"}'),
    ("moderation null", '"moderation":null'),
    ("n", '"n":3'),
    ("n as a float", '"n":1.0'),
    ("parallel_tool_calls", '"parallel_tool_calls":false,"tools":[{"type":"function","function":{"name":"f"}}]'),
    ("prediction", '"prediction":{"type":"content","content":"class A:\\n\\tpass\\n"}'),
    ("prediction in parts", '"prediction":{"type":"content","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}'),
    ("presence_penalty", '"presence_penalty":0.60'),
    ("prompt_cache_key", '"prompt_cache_key":"user-1/thread-2","prompt_cache_retention":"24h"'),
    ("prediction up to a breakpoint", '"prediction":{"type":"content","content":[{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit"}}]}'),
    ("prompt_cache_options", '"prompt_cache_options":{"mode":"explicit","ttl":"30m"}'),
    ("prompt_cache_options, empty", '"prompt_cache_options":{ }'),
    ("reasoning_effort", '"reasoning_effort":"minimal"'),
    ("reasoning_effort none", '"reasoning_effort":"none","verbosity":"low"'),
    ("response_format text", '"response_format":{"type":"text"}'),
    ("response_format json_object", '"response_format":{"type":"json_object"}'),
    ("response_format json_schema", '"response_format":{"type":"json_schema","json_schema":{"name":"s","description":"d","strict":true,"schema":{"type":"object","properties":{"b":{"type":"number","minimum":1e-7},"a":{"$ref":"#/$defs/x"}},"required":["b","a"],"additionalProperties":false,"$defs":{"x":{"enum":[null,1,"\\u2028"]}}}}}'),
    ("safety_identifier", '"safety_identifier":"3f2a","user":"u-1"'),
    ("seed", '"seed":-9223372036854775808'),
    ("seed at its largest", '"seed":9223372036854775807'),
    ("service_tier", '"service_tier":"flex"'),
    ("stop", '"stop":"\\n\\nHuman:"'),
    ("stop, several", '"stop":["\\u0000","</s>","\\"","\\\\"]'),
    ("stop null", '"stop":null'),
    ("store", '"store":true'),
    ("temperature", '"temperature":0.70'),
    ("temperature as an integer", '"temperature":2'),
    ("temperature and top_p", '"temperature":1e0,"top_p":1E-1'),
    ("tool_choice auto", '"tool_choice":"auto","tools":[{"type":"function","function":{"name":"f","description":"d","strict":true,"parameters":{"type":"object","properties":{},"additionalProperties":false}}}]'),
    ("tool_choice required", '"tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}]'),
    ("tool_choice none", '"tool_choice":"none","tools":[{"type":"function","function":{"name":"f"}}]'),
    ("tool_choice named", '"tool_choice":{"type":"function","function":{"name":"f"}},"tools":[{"type":"function","function":{"name":"f"}}]'),
    ("tool_choice allowed", '"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"f"}}]}},"tools":[{"type":"function","function":{"name":"f"}}]'),
    ("custom tools", '"tools":[{"type":"custom","custom":{"name":"sql","description":"d","format":{"type":"grammar","grammar":{"syntax":"lark","definition":"start: \\"a\\"+"}}}}],"tool_choice":{"type":"custom","custom":{"name":"sql"}}'),
    ("custom tools of text", '"tools":[{"type":"custom","custom":{"name":"note","format":{"type":"text"}}}]'),
    ("web_search_options", '"web_search_options":{"search_context_size":"low","user_location":{"type":"approximate","approximate":{"country":"PT","city":"Lisboa","region":"Lisboa","timezone":"Europe/Lisbon"}}}'),
    ("another server's fields", '"top_k":40,"min_p":0.05,"repetition_penalty":1.10,"chat_template_kwargs":{"enable_thinking":false},"guided_json":{"b":1,"a":2}'),
    ("a gateway's fields", '"provider":{"order":["x","y"],"allow_fallbacks":false},"transforms":[],"route":"fallback","plugins":[{"id":"web"}]'),
    ("reasoning of others", '"reasoning":{"effort":"high","exclude":false},"thinking":{"type":"enabled","budget_tokens":1024},"extra_body":{"google":{"thinking_config":{"include_thoughts":true}}}'),
    ("unknown fields", '"x-unknown":{"z":1,"a":[{}, [] ,null,true]},"":0,"ключ":"значение","\\u006bey":1'),
    ("odd numbers", '"a":1e400,"b":-0,"c":-0.0,"d":12345678901234567890123,"e":0.1000000000000000055511151231257827,"f":1E+2,"g":5e-324,"h":1.0'),
    ("odd text", '"a":"\\u0000\\u001f\\u007f\\u2028\\ud83d\\ude00","b":"\u2028\u2029\U0001f600","c":"\\/ \\b\\f","d":"\ufeff"'),
    ("spaces", ' "a" :\t[ 1 , 2 ] ,\r\n "b":{ } '),
]  # fmt: skip

# What the messages can be. Every one may stand in a conversation as it is.
MESSAGES = [
    ("developer", '[{"role":"developer","content":"Be brief."},{"role":"user","content":"hi"}]'),
    ("system in parts", '[{"role":"system","content":[{"type":"text","text":"Be"},{"type":"text","text":"brief."}],"name":"boss"},{"role":"user","content":"hi"}]'),
    ("developer in parts", '[{"role":"developer","name":"boss","content":[{"type":"text","text":"Be brief."}]},{"role":"user","content":"hi"}]'),
    ("two systems", '[{"role":"system","content":"a"},{"role":"developer","content":"b"},{"role":"user","content":"hi"}]'),
    ("a system in the middle", '[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"system","content":"c"},{"role":"user","content":"d"}]'),
    ("names", '[{"role":"user","name":"ann","content":"hi"},{"role":"assistant","name":"bot","content":"ho"},{"role":"user","name":"bob","content":"and I?"}]'),
    ("images", '[{"role":"user","content":[{"type":"text","text":"what is it?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo=","detail":"low"}},{"type":"image_url","image_url":{"url":"https://h/x.png?a=1&b=%20"}}]}]'),
    ("audio part", '[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}}]}]'),
    ("file parts", '[{"role":"user","content":[{"type":"file","file":{"file_id":"file-1"}},{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,JVBERg=="}}]}]'),
    ("breakpoints", '[{"role":"developer","content":[{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit"}}]},{"role":"system","content":[{"prompt_cache_breakpoint":{"mode":"explicit"},"type":"text","text":"b"}]},{"role":"user","content":[{"type":"text","text":"c","prompt_cache_breakpoint":{"mode":"explicit"}},{"type":"image_url","image_url":{"url":"https://h/x.png"},"prompt_cache_breakpoint":{"mode":"explicit"}}]}]'),
    ("breakpoints in sound and files", '[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"mp3"},"prompt_cache_breakpoint":{"mode":"explicit"}},{"type":"file","file":{"file_id":"file-1"},"prompt_cache_breakpoint":{"mode":"explicit"}}]}]'),
    ("breakpoints in answers and results", '[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text","text":"b","prompt_cache_breakpoint":{"mode":"explicit"}}],"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"1","prompt_cache_breakpoint":{"mode":"explicit"}}]},{"role":"user","content":"d"}]'),
    ("a part of tomorrow", '[{"role":"user","content":[{"type":"video_url","video_url":{"url":"https://h/v"}},{"type":"text","text":"?"}]}]'),
    ("refusal", '[{"role":"user","content":"a"},{"role":"assistant","content":null,"refusal":"I cannot."},{"role":"user","content":"b"}]'),
    ("refusal part", '[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]},{"role":"user","content":"b"}]'),
    ("an answer in audio", '[{"role":"user","content":"a"},{"role":"assistant","audio":{"id":"audio_1"}},{"role":"user","content":"b"}]'),
    ("a tool call", '[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\\"x\\": 1.0,\\n \\"y\\":\\"\\\\u00e9\\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"\\u0007 result"}]'),
    ("parallel calls", '[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":""}},{"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c2","content":[{"type":"text","text":"2"}]},{"role":"tool","tool_call_id":"c1","content":""},{"role":"user","content":"go on"}]'),
    ("custom call", '[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"c1","type":"custom","custom":{"name":"sql","input":"select 1;"}}]},{"role":"tool","tool_call_id":"c1","content":"1"}]'),
    ("thought signatures", '[{"role":"user","content":"a"},{"role":"assistant","reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","extra_content":{"google":{"thought_signature":"AbC=="}},"function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"1"}]'),
    ("thinking blocks", '[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"text","text":"b"}],"reasoning_details":[{"type":"reasoning.encrypted","data":"x"}]},{"role":"user","content":"c","cache_control":{"type":"ephemeral"}}]'),
    ("legacy function", '[{"role":"user","content":"a"},{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}},{"role":"function","name":"f","content":"1"}]'),
    ("an assistant last", '[{"role":"user","content":"a"},{"role":"assistant","content":"The answer is","prefix":true}]'),
    ("users in a row", '[{"role":"user","content":"a"},{"role":"user","content":"b"},{"role":"user","content":""}]'),
    ("Unicode", '[{"role":"user","content":"e\u0301 \u202e\u2066rtl \U0001f468\u200d\U0001f469 \u0000\\u0000"}]'.replace("\x00", "")),
    ("numbers in a message", '[{"role":"user","content":"a","x":1e400,"y":[1.50,-0.0,12345678901234567890123]}]'),
    ("spaces in messages", '[ {"role" :"user" ,\n"content":\t"a" } , { "content":"b","role":"assistant"},\r\n{"role":"user","content":"c"} ]'),
]  # fmt: skip

# Bodies that are no chat request, or one nobody should send: the upstream is to say what is wrong
# with them.
ODDITIES = [
    ("no model", b'{"messages":[{"role":"user","content":"hi"}]}'),
    ("messages first", b'{"messages":[{"role":"user","content":"hi"}],"model":"m"}'),
    ("no messages", b'{"model":"m"}'),
    ("messages empty", b'{"model":"m","messages":[]}'),
    ("messages null", b'{"model":"m","messages":null}'),
    ("messages an object", b'{"model":"m","messages":{"role":"user","content":"hi"}}'),
    ("messages of text", b'{"model":"m","messages":["hi"]}'),
    ("a role nobody knows", b'{"model":"m","messages":[{"role":"critic","content":"hi"}]}'),
    ("a role that is a number", b'{"model":"m","messages":[{"role":1,"content":"hi"}]}'),
    ("no role", b'{"model":"m","messages":[{"content":"hi"}]}'),
    ("content a number", b'{"model":"m","messages":[{"role":"user","content":1.0}]}'),
    ("a result nobody asked for", b'{"model":"m","messages":[{"role":"tool","tool_call_id":"x","content":"1"}]}'),
    ("a call nobody answers", b'{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{"}}]},{"role":"user","content":"hi"}]}'),
    ("keys twice", b'{"model":"a","model":"b","messages":[],"messages":[{"role":"user","content":"hi"}]}'),
    ("a byte order mark", b'\xef\xbb\xbf{"model":"m","messages":[{"role":"user","content":"hi"}]}'),
    ("UTF-16", '{"model":"m","messages":[{"role":"user","content":"hi"}]}'.encode("utf-16")),
    ("Latin-1", b'{"model":"m","messages":[{"role":"user","content":"caf\xe9"}]}'),
    ("half a character", b'{"model":"m","messages":[{"role":"user","content":"\\ud83d"}],"user":"\\ude00"}'),
    ("NaN", b'{"model":"m","temperature":NaN,"messages":[{"role":"user","content":"hi","x":Infinity}]}'),
    ("a comment", b'{"model":"m",/* no */"messages":[{"role":"user","content":"hi"}]}'),
    ("a trailing comma", b'{"model":"m","messages":[{"role":"user","content":"hi"},],}'),
    ("two objects", b'{"messages":[]}{"messages":[]}'),
    ("a list", b'[{"messages":[]}]'),
    ("text", b'"messages"'),
    ("broken off", b'{"model":"m","messages":[{"role":"us'),
    ("deep", b'{"messages":' + b"[" * 5_000 + b"]" * 5_000 + b"}"),
    ("binary", bytes(range(256))),
    ("a form", b"model=m&messages=%5B%5D"),
    ("gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
    ("nothing", b""),
    ("space", b" \r\n\t "),
]  # fmt: skip


def members() -> list[Exchange]:
    return [
        Exchange(f"chat: {name}", body=f'{{"model":"m",{text},"messages":{HI}}}'.encode())
        for name, text in MEMBERS
    ]


def messages() -> list[Exchange]:
    return [
        Exchange(f"messages: {name}", body=f'{{"messages":{text},"model":"m"}}'.encode())
        for name, text in MESSAGES
    ]


def streams() -> list[Exchange]:
    """Every form of asking for a stream, answered with one."""
    asked = [
        "",
        ',"stream_options":{"include_usage":true}',
        ',"stream_options":{"include_obfuscation":false,"x":1}',
        ',"n":2',
    ]
    return [
        Exchange(
            f"stream: {more or 'plain'}",
            body=f'{{"stream": true{more},"messages":{HI}}}'.encode(),
            answer=STREAMED,
        )
        for more in asked
    ]


def oddities() -> list[Exchange]:
    return [Exchange(f"odd: {name}", body=body, answer=COMPLETED) for name, body in ODDITIES]


def large() -> list[Exchange]:
    text = '{"model":"m","messages":[{"role":"user","content":"%s"}]}'
    return [
        Exchange("large: 1 MB of text", body=(text % ("\u20ac 12" * 170_000)).encode()),
        Exchange("large: many messages", body=b'{"messages":[' + b",".join([HI[1:-1].encode()] * 5_000) + b'],"model":"m"}'),
        Exchange("large: in chunks", pieces=((text % "a").encode()[:20], (text % "a").encode()[20:])),
        Exchange("large: in chunks of a byte", pieces=tuple(bytes([b]) for b in (text % "\u00e9").encode())),
        Exchange("large: many chunks", pieces=tuple((text % ("x" * 100_000)).encode()[i : i + 999] for i in range(0, 100_100, 999))),
    ]  # fmt: skip


def chats() -> list[Exchange]:
    return [*members(), *messages(), *streams(), *oddities(), *large()]
