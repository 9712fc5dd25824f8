"""The table of the commands: groups, names, help, the function that runs each, and its options.

The parser, the help, the shell's completion and docs/reference/cli.md are made from it. It imports
no command, so every start is fast. Its rows are wider than code.
"""

from __future__ import annotations

from pathlib import Path

from om_proxy.cli.completion import complete_path, complete_tenant
from om_proxy.cli.options import (
    ABOUT_NOTE,
    ABOUT_THREAD,
    CHUNK,
    CONFIG,
    CURSOR,
    IF_VERSION,
    JSON,
    MEMORY,
    PAGE,
    RESOURCE,
    TENANT,
    YES,
    Command,
    Family,
    Group,
    OneOf,
    Option,
    flag,
    limit_option,
    option,
    read_age,
    read_count,
    read_day,
    read_sample,
    read_seconds,
    resource_option,
    thread_option,
)

# fmt: off
JSON_RESULT = flag("--json", "print the result as JSON")
METHODS = ("GET", "POST", "PATCH", "DELETE")
PIN_ID = option("ID", "the pinned note, as `om-proxy notes pins` shows it", type=int)
PLACE_HELP = "a URL as in storage.url, an SQLite file, or a configuration file (.yaml)"

RUNNING_COMMANDS = (
    Command(
        "serve", "run the proxy", "serve.run", (
            CONFIG,
            option("--host", "the address to listen on, in place of server.host"),
            option("--port", "the port to listen on, in place of server.port; 0 takes a free one", type=int),
            flag("--worker", "do the background work of a store that servers share, and serve nothing else"),
        ),
        "Run the proxy until SIGTERM or SIGINT. With --worker, do the background work of a store instead: notes, webhooks "
        "and clearing out. The servers on the store need background.external: true. Work with an inherited model stays "
        "with the server that has the call.",
        "Without --host and --port, the address comes from the environment (OM_PROXY__SERVER__HOST, "
        "OM_PROXY__SERVER__PORT), else from server.host and server.port in the file, else it is 127.0.0.1, port 8400. "
        "A worker reads the servers' configuration. At server.host and server.port it answers /healthz, /readyz and "
        "/metrics; beside a server on the same machine it needs a --port of its own.",
    ),
    Command("check", "show the settings in force for a model, and what needs attention", "doctor.check", (
        CONFIG,
        option("--model", "the actor's model, as the client names it"),
        option("--resource", "the resource, as the client names it"),
        flag("--all", "also print every setting and where it comes from"),
        flag("--json", "print every setting and the warnings as JSON"),
        ),
        "Show the settings in force for a model, and what needs attention. No store is opened and no model server "
        "asked: `om-proxy doctor` does both.",
    ),
    Command("init", "write an annotated configuration file for you to edit", "configuration.init", (
        option("[PATH]", "the file to write (default: %(default)s)", default="config/om-proxy.yaml"),
    )),
    Command("doctor", "find what does not work: settings, servers, credentials, store, failing threads", "doctor.run", (
        CONFIG,
        option("[CLIENT]", "say what this client needs instead, by the name of its page in docs/clients, and what "
               "a running server has counted"),
        TENANT,
        RESOURCE,
        flag("--json", "print the findings as JSON"),
        flag("--revive", "clear the threads' failures: their memory work is tried again at once"),
        flag("--call", "also make one tiny observer call, and with --model one of a chat with notes; "
             "print what came of them"),
        option("--model", "the actor's model, as the client names it; `auto` and `inherit` depend on it"),
        ),
        "Ask each model server whether it answers. Look for warnings about the settings, the memory models' credentials, "
        "the store with its promises and its times, threads whose memory work fails, token ranks, and the age of the price "
        "table. Exit status: 0 if everything works, 1 if something does not, 3 if the settings cannot be read.",
    ),
    Command("demo", "play a long conversation with and without memory: no key, no network", "demo.run", (
        flag("--show-prompt", "print the last prompt, as it went upstream"),
        option("--pace SECONDS", "wait this long after each question, so that you can read along", type=float, default=0.0),
        OneOf((
            option("--keep FOLDER", "keep the memory of the conversation (in om-proxy-demo), and show it in the dashboard "
                   "until Ctrl-C; played already, it is only shown", nargs="?", const=Path("om-proxy-demo"), type=Path),
            flag("--serve", "instead, serve a scripted model behind the proxy, for your own client to try"),
        )),
        option("--port", "the port of --serve and --keep on 127.0.0.1 (%(default)s); --keep takes another one if it is "
               "in use", type=int, default=8400),
        ),
        "Play a conversation of five working days, with memory and without. It needs no key and no network: the models "
        "are scripted, and everything between them and the client is real.",
    ),
    Command("token", "make an X-OM-Token, which gives a user access to their own threads only", "configuration.print_token", (
        CONFIG,
        option("--resource", "the user, as X-OM-Resource would name them", required=True),
        option("--thread", "the only thread it opens; default: all of the resource"),
        option("--ttl", "how long it is valid: <n>s, m, h or d (default: %(default)s)", default="1h"),
        option("--tenant", "the tenant whose key it is sent with; needed if auth.keys has several"),
    )),
)

READING_COMMANDS = (
    Command("threads", "list the threads that have a memory, or show the state of one's memory", "threads.show", (
        *MEMORY,
        thread_option("[THREAD]", "show this thread: its windows and failures; without it, list threads"),
        option("--prefix PREFIX", "only threads whose name, resource or title begins with this", dest="q"),
        option("--state", "only threads whose memory work goes on, fails or was given up, or that have notes",
               choices=("active", "failing", "parked", "observed")),
        option("--order", "the most recent turn first, or by name (default: %(default)s)",
               choices=("recent", "name"), default="recent"),
        *PAGE,
    )),
    Command("messages", "show the messages of a thread, and what became of each", "threads.print_messages", (
        *ABOUT_THREAD,
        option("--after N", "only messages behind number N", type=int, default=0),
        option("--through N", "only messages up to number N", type=int),
        option("--all", "also messages that were taken back, and replies that broke off",
               action="store_const", const="all", dest="live"),
        flag("--excerpt", "only the beginning of each message"),
        *PAGE,
    ), asks="GET /threads/{thread}/messages"),
    Command("search", "search the messages of threads, or their notes, by words", "threads.search", (
        CONFIG,
        TENANT,
        resource_option("only this resource"),
        JSON,
        option("WORD", "the words to look for", dest="words", nargs="+"),
        thread_option("--thread THREAD", "only this thread, as the client names it"),
        option("--in", "what to search (default: %(default)s)",
               dest="searched", choices=("messages", "notes"), default="messages"),
        limit_option(20, most=100),
    )),
    Command("context", "show what would go upstream now; nothing is stored, and no model is called", "threads.show_context", (
        *ABOUT_THREAD,
        option("--text", "the next message; without it, three dots stand for it", default="…"),
        option("--request FILE", "a chat request in JSON, as a client would send it; `-` reads it from stdin"),
    )),
    Command("stats", "show what memory saves and costs", "stats.show", (
        CONFIG,
        TENANT,
        JSON,
        option("--by", "what the figures are summed up by (default: %(default)s)",
               choices=("day", "model", "resource", "thread"), default="day"),
        option("--from DAY", "the first day, in UTC", dest="first_at", type=read_day),
        option("--to DAY", "the last day, in UTC", dest="last_at", type=read_day),
        *PAGE,
    )),
    Command("events", "list what happened to memories, and follow what happens", "events.show", (
        *MEMORY,
        thread_option("[THREAD]", "only of this thread, as the client names it"),
        flag("--follow", "go on with new events until Ctrl-C"),
        option("--type", "only events of these types, with commas between them"),
        limit_option(None, default_help="all that are kept; with --json and without --follow, 100"),
        CURSOR,
        ),
        "List what happened to memories, the oldest first: notes made, activated, condensed, edited or forgotten, and "
        "failures.",
    ),
)

MOVING_COMMANDS = (
    Command("forget", "remove a thread and all notes about it, a resource or a tenant", "forget.run", (
        *MEMORY,
        thread_option("[THREAD]"),
        flag("--all", "all threads of the resource, or of the tenant"),
        YES,
        ),
        "Remove a thread's messages and all notes about it. The server may be running: the thread is gone for it at once. "
        "With --all and without THREAD, remove the resource of --resource, or else the whole tenant of --tenant.",
    ),
    Command("export", "write everything stored, one JSON record a line", "exports.export", (
        CONFIG,
        TENANT,
        RESOURCE,
        thread_option("[THREAD]", "only this thread, as the client names it"),
        option("--output FILE", "a new file, which only its owner will be able to read"),
        flag("--all", "all tenants, one behind the other"),
        flag("--with-secret", "with the store's secret, so that a new store can go on with every thread; whoever has it "
             "can forge tenants and fingerprints"),
        flag("--yes", "print the secret without --output"),
        ),
        "Write everything stored of a thread, of a resource (--resource without THREAD), or of a tenant. Without --output "
        "it is written to standard output.",
    ),
    Command("import", "read an export into the store, or conversations of another program", "exports.import_", (
        CONFIG,
        option("FILE", "what om-proxy export has written; with --from, one or more histories of the program", nargs="+"),
        option("--from PROGRAM", "the program whose history it is: chatgpt, claude-ai, open-webui, librechat, opencode, "
               "openai-jsonl or another one that an error names", dest="program"),
        option("--resource", "with --from: whose conversations these are, as X-OM-Resource would name them"),
        option("--tenant", "with --from: whose memory; needed if the store has several tenants", complete_tenant),
        option("--since DAY", "with --from: only conversations that went on at that day or later, in UTC", type=read_day),
        option("--notes", "with --from: let each thread's next request have notes made, or have them made now "
               "(default: %(default)s)", choices=("later", "now"), default="later"),
        flag("--yes", "with --notes now: do not ask before a model is asked"),
        option("--tenant-map OLD=NEW", "import the threads of the tenant OLD under the tenant NEW; may be repeated",
               action="append", default=[]),
        flag("--skip-existing", "leave threads that the store has as they are there, and import the others"),
        flag("--dry-run", "check everything, and write nothing"),
        JSON_RESULT,
        ),
        "Read an export into the store that the configuration names. Every line is checked before anything is written. "
        "One thread is written at once or not at all; run the command again if it was interrupted. A thread that the store "
        "has in another state stops it before it writes anything.",
        "With --from, each conversation becomes a thread of its own name, with the times of its messages. No model is asked "
        "unless --notes is now. A client that goes on with a conversation goes on with the thread; what is imported again is "
        "the same. Exit status 5: a thread holds another conversation; the others were imported.",
    ),
)

NOTES_COMMANDS = (
    Command("show", "show what memory has noted about a thread", "notes.show", (
        *ABOUT_THREAD,
        option("[ID]", "only this entry, with the notes that it was made from", type=int),
        CHUNK,
        flag("--messages", "also show the messages that the entry covers"),
        option("--generation N", "show the notes of an older generation", type=int),
        flag("--generations", "list the stored generations"),
    )),
    Command("edit", "give a note other words", "notes.edit", (
        *ABOUT_NOTE,
        option("--text", "the new words, 1 to 20 000 characters"),
        ),
        "Give a note other words. Without --text, they are read from standard input or, on a terminal, from the editor "
        "that EDITOR names.",
    ),
    Command("withdraw", "take a note away from the model", "notes.withdraw", (
        *ABOUT_NOTE,
        flag("--forget", "erase its words in older generations too; nothing brings them back"),
        ),
        "Take a note away from the model. The messages of an entry stay covered: the model reads neither the note nor "
        "them. A dropped chunk's messages are read again.",
    ),
    Command("undo", "take back the newest reflection, edit or withdrawal of notes", "notes.undo", (
        *ABOUT_THREAD,
        flag("--yes", "do not ask before a reflection is taken back"),
        IF_VERSION,
    )),
    Command("pins", "list the notes that people pinned to a thread", "notes.print_pins", ABOUT_THREAD,
            asks="GET /threads/{thread}/pins"),
    Command("pin", "pin a note that every later prompt begins with", "notes.print_pins", (
        *ABOUT_THREAD, option("TEXT", "the words of the note"), IF_VERSION,
        ),
        "Pin a note of your own. It stands before all other notes and is never condensed.",
        asks="POST /threads/{thread}/pins",
    ),
    Command("edit-pin", "give a pinned note other words", "notes.print_pins", (
        *ABOUT_THREAD, PIN_ID, option("TEXT", "the new words"), IF_VERSION,
    ), asks="PATCH /threads/{thread}/pins/{id}"),
    Command("unpin", "take a pinned note away", "notes.print_pins", (*ABOUT_THREAD, PIN_ID, IF_VERSION),
            asks="DELETE /threads/{thread}/pins/{id}"),
    Command("observe", "have messages observed now, below the thresholds too", "notes.observe", (
        *ABOUT_THREAD,
        flag("--all", "the whole backlog, batch by batch; else one batch"),
        IF_VERSION,
        ),
        "Have the memory model observe messages now, below the thresholds too, and wait for its notes. They wait as "
        "chunks until they become active.",
    ),
    Command("reflect", "have all notes condensed now", "notes.reflect", (
        *ABOUT_THREAD,
        option("--instruction", "what the memory model should heed, in your words"),
        IF_VERSION,
        ),
        "Have the memory model condense all notes now, and wait for the result. It takes their place if it is shorter.",
    ),
    Command("activate", "make the chunks that wait active, for the next prompt", "notes.print_activation",
            (*ABOUT_THREAD, IF_VERSION), asks="POST /threads/{thread}/activate"),
)

STORE_COMMANDS = (
    Command("backup", "copy the SQLite file as of now, while a server uses it", "store_upkeep.back_up", (
        CONFIG,
        option("FILE", "the new file"),
        flag("--keys", "the file of storage.keys_url instead: keep its backups apart from the others"),
        flag("--compact", "without free pages; it takes longer"),
        ),
        "Write the SQLite file of the configuration as of now into a new file, which only its owner can read. A server may "
        "use it meanwhile. A file that is cut off has the ending .part.",
    ),
    Command("copy", "copy one store into another", "store_moving.copy", (
        option("FROM", PLACE_HELP, dest="source"),
        option("TO", f"{PLACE_HELP}; a missing store is made", dest="target"),
        flag("--update", "replace threads that TO has in another state by those of FROM"),
        flag("--verify", "read everything again, and compare every field"),
        JSON_RESULT,
        ),
        "Copy all threads, sums and records of the store FROM into the store TO, with its secret. TO must be empty, or an "
        "earlier copy: what it has already is left alone, so an interrupted copy goes on when it is run again. Servers of "
        "FROM may run: what changes meanwhile is named at the end, and exit status 1 says so. Nobody may serve TO "
        "meanwhile.",
    ),
    Command("verify", "look whether everything stored fits together", "store_upkeep.verify", (
        CONFIG,
        flag("--repair", "compute anew what can be, one thread at a time; such a thread loses its events"),
        JSON_RESULT,
        ),
        "Look whether the chains, parents, counts and notes of every thread fit together. Exit status 1 if something does "
        "not.",
    ),
    Command("index", "fill, check, rebuild or drop the index of original messages", "store_upkeep.index", (
        CONFIG,
        OneOf((
            flag("--check", "compare the index with the messages; exit status 1 if something is wrong"),
            flag("--rebuild", "index everything anew, batch by batch; searches find it meanwhile"),
            flag("--drop", "remove the index; with memory.retrieval a server indexes again"),
        )),
        flag("--json", "with --check: print what was found as JSON"),
        ),
        "Index the original messages that are to be searched, as the server does in quiet times: those of threads with "
        "memory.retrieval. A server may run at the same time.",
    ),
    Command(
        "migrate", "bring the schema of the store up to date, and do nothing else", "store_upkeep.migrate", (CONFIG,),
        "Bring the schema of the store up to date, or make it. For jobs of a release, before its processes start; they do "
        "the same at their start.",
    ),
    Command("erase", "get the bytes of what was forgotten out of the database", "store_upkeep.erase", (
        CONFIG,
        flag("--rewrite", "rewrite the tables of PostgreSQL"),
        option("--lock-timeout SECONDS", "how long to wait for a table that is in use; turns wait as long (default: 2)",
               type=read_seconds, default=2.0),
        option("--wait SECONDS", "how long to wait for readers, such as a backup, to end (default: 60)",
               type=read_seconds, default=60.0),
        YES,
        ),
        "Wait until the bytes of what was forgotten have left the database. In PostgreSQL they stay in the tables' files: "
        "with --rewrite, rewrite table by table (VACUUM FULL). Each is locked meanwhile: chat goes on without memory, and "
        "turns wait. If that is interrupted, run the command again: it goes on.",
    ),
    Command("receipt", "check the signature of a receipt of what was forgotten", "forget.verify_receipt", (
        CONFIG,
        TENANT,
        resource_option("the resource that it should be about"),
        option("FILE", "the receipt, as `forget --json` printed it; `-` for standard input"),
        option("--thread THREAD", "the thread that it should be about"),
        ),
        "Say whether this store signed the receipt in a file, at any time; with --thread or --resource, whether it is about "
        "that. `om-proxy api GET /receipts/ID` shows a receipt for 30 days.",
    ),
    Command(
        "rekey", "change the master key of an encrypted database", "store_moving.rekey", (CONFIG,),
        "Wrap the data keys under the first key of storage.encryption_key. Texts are not touched. Afterwards the older "
        "keys open nothing any more. Data keys that are beside the data move to storage.keys_url first, if it is set.",
        "First give every server the list [new, old], and restart it; with several servers, [old, new] before that, so "
        "that each can read what another one writes. Then run this command, and take the old key out of the list. To move "
        "the data keys, stop the servers first.",
    ),
    Command(
        "rekey-tenant", "move the memory of an old API key to the new one", "store_moving.rekey_tenant", (CONFIG,),
        "Move the memory of an old API key to the new one. If auth.keys is not set, memory belongs to the API key itself. "
        "Run this command when no client uses the old key any more: a turn that is under way with the old key is not "
        "stored.",
        "The keys are read from OM_PROXY_OLD_CREDENTIAL and OM_PROXY_NEW_CREDENTIAL, else from standard input: the old key "
        "on the first line, the new key on the second. On a terminal, the command asks for the keys and does not show "
        "them.",
    ),
)

RUN_FOLDER = option("RUN", "the folder of the run", dest="run_folder", type=Path)
DATA = option("--data FILE", "the benchmark's file, where it stands now", type=Path)
BUDGET = option("--budget DOLLARS", "stop before the run could cost more", type=float)
EVALUATION_OPTIONS = (
    option("BENCHMARK", "which one", choices=("longmemeval-s", "locomo")),
    option("--data FILE", "its file (`om-proxy eval data`)", type=Path, required=True),
    option("--actor MODEL", "the model that answers: NAME@URL, a name of OpenAI's or of litellm's, or script:gold", required=True),
    option("--memory-model MODEL", "the model that writes notes, in the same form, or script:notes", required=True),
    option("--judge MODEL", "the model that reads the replies, in the same form, or script:judge", required=True),
    option("--systems NAMES", "om, full, none, oracle (default: %(default)s)", default="om,full,none,oracle"),
    option("--sample N", "so many questions, chosen by hash; `all` of them (default: %(default)s)",
           type=read_sample, default=60),
    option("--cases N", "only questions of the first N cases", type=int),
    option("--settings FILE", "a configuration file, for its rules of memory, over the benchmark's own"),
    option("--price STEP=IN,OUT", "dollars of a million tokens, in place of the price list: actor=2.5,10; may be repeated",
           action="append", default=[]),
)
EVALUATION_COMMANDS = (
    Command("data", "say where each benchmark's file is had", "evaluate.print_sources", (JSON_RESULT,)),
    Command("plan", "print the calls, tokens and dollars of a run, by step", "evaluate.plan", (
        *EVALUATION_OPTIONS, JSON_RESULT,
    )),
    Command("run", "play a benchmark, and write a folder with every call", "evaluate.run", (
        *EVALUATION_OPTIONS,
        option("--out FOLDER", "a new folder (default: %(default)s)", type=Path, default=Path("om-proxy-eval")),
        BUDGET,
        YES,
        ),
        "Play the sessions of a benchmark through the proxy at their dates, ask every question of every system, and have "
        "one judge read the replies. Every call of a model is logged with its answer and its price. Keys of models come "
        "from OPENAI_API_KEY, or from the variables that litellm reads.",
    ),
    Command("resume", "go on with a run that was interrupted", "evaluate.resume", (RUN_FOLDER, DATA, BUDGET, YES)),
    Command("report", "compute the report of a run again, and print it", "evaluate.report", (RUN_FOLDER, JSON_RESULT)),
    Command("verify", "check every number of a run by its log", "evaluate.verify", (RUN_FOLDER, DATA),
            "Compute every number of a run again from its log. With --data, play the run again with the log as its only "
            "model: every prompt must be the same, byte for byte. The first difference is printed; exit status 1."),
)

GROUPS = (
    Group("run the proxy", RUNNING_COMMANDS),
    Group("look into memories", READING_COMMANDS),
    Group("remove and move memories", MOVING_COMMANDS),
    Group("more commands", (
        Command("api", "ask any route of the admin API", "api.run", (
            CONFIG,
            TENANT,
            RESOURCE,
            option("[METHOD]", "the method of the route", type=str.upper, choices=METHODS),
            option("[PATH]", "the path below /om/v1, with its query: /threads/kitchen/messages?limit=5", complete_path),
            option("--data", "the body: JSON, or @FILE with it; `@-` reads standard input"),
            IF_VERSION,
            flag("--json", "without METHOD: print the list of routes as JSON"),
            ),
            "Ask a route of the admin API, on the store that the configuration names, and print the JSON that it answers. "
            "A server needs not run. Without METHOD and PATH, list the routes.",
        ),
        Family("notes", "show, correct and make the notes of a thread", NOTES_COMMANDS),
        Command("replay", "measure memory on your own conversations: no key, nothing leaves the machine", "replay.run", (
            Option("path", {"metavar": "PATH", "nargs": "*", "help": "a file or folder, or `-` for standard input "
                            "(default: the known places of coding agents)"}, complete_path),
            option("--from NAME", "the program that wrote the files (default: found from their beginning)", dest="source"),
            flag("--list", "list the conversations found, and play none"),
            option("--since AGE", "only conversations whose last call is not older: <n>h or d", type=read_age),
            option("--top N", "play so many, the largest first (default: %(default)s)", type=read_count, default=10),
            option("--actor MODEL", "the model whose prices count (default: the recorded one, else gpt-5.4)"),
            option("--price PRICE", "dollars of a million tokens, for a model without a list price: in=3,out=15"),
            option("--settings FILE", "a configuration file, for its rules of memory (default: the built-in ones)"),
            option("--with-model MODEL", "a model that makes the notes: NAME@URL, or a name of OpenAI's or litellm's; asks before"),
            option("--budget DOLLARS", "spend no more on the model", type=float),
            option("--log FOLDER", "keep the model's calls there, and make none that stands there again"),
            flag("--yes", "do not ask before the model is asked"),
            JSON_RESULT,
            flag("--no-titles", "show no title of a conversation"),
            ),
            "Play recorded conversations through the real proxy, each call at its time and answered by the recorded reply. "
            "Print what they would have cost with memory and without. A script writes the notes, in the lengths that "
            "memory models were measured to write.",
        ),
        Family("eval", "measure memory on public benchmarks, and check such a run", EVALUATION_COMMANDS),
        Family("store", "back up, check, move, index and erase a store", STORE_COMMANDS),
    )),
)
# fmt: on
