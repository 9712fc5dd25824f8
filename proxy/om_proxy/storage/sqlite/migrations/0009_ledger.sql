-- What model calls cost, and would have cost without memory: sums by day. Costs are micro-dollars.
-- A resource has a line of its own while it has a thread; what is forgotten stands under ''.
CREATE TABLE ledger (
    tenant                TEXT NOT NULL,
    day                   INTEGER NOT NULL, -- since 1970-01-01, in UTC
    resource              TEXT NOT NULL,
    model                 TEXT NOT NULL,
    who                   TEXT NOT NULL,    -- actor, observer or reflector
    history               TEXT NOT NULL,    -- full or partial: what the client sends
    calls                 INTEGER NOT NULL,
    input                 INTEGER NOT NULL,
    cached                INTEGER NOT NULL,
    cache_write           INTEGER NOT NULL,
    output                INTEGER NOT NULL,
    cost                  INTEGER NOT NULL,
    baseline_input        INTEGER NOT NULL,
    baseline_cached       INTEGER NOT NULL,
    baseline_cache_write  INTEGER NOT NULL,
    baseline_cost         INTEGER NOT NULL,
    estimated             INTEGER NOT NULL,
    unpriced              INTEGER NOT NULL,
    shadow_calls          INTEGER NOT NULL,
    shadow_received       INTEGER NOT NULL,
    shadow_sent           INTEGER NOT NULL,
    shadow_baseline_cost  INTEGER NOT NULL,
    shadow_cost           INTEGER NOT NULL,
    PRIMARY KEY (tenant, resource, day, model, who, history)
) STRICT, WITHOUT ROWID;
-- The newest batch of lines that each process has added: a batch that is sent twice is added once.
CREATE TABLE ledger_writer (
    writer TEXT PRIMARY KEY,
    batch  INTEGER NOT NULL,
    at     REAL NOT NULL
) STRICT, WITHOUT ROWID;
