-- Who changed what, and what was forgotten: without names of threads, without texts.

CREATE TABLE audit (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     REAL NOT NULL,
    who    TEXT NOT NULL, -- admin, cli, or a keyed digest of a credential
    tenant TEXT NOT NULL,
    what   TEXT NOT NULL,
    label  TEXT NOT NULL,
    counts TEXT NOT NULL  -- JSON object
) STRICT;
CREATE INDEX audit_of_tenant ON audit (tenant, id);
CREATE INDEX audit_at ON audit (at);
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN
    SELECT RAISE(ABORT, 'a record of the audit is never changed');
END;

CREATE TABLE receipt (
    id     TEXT PRIMARY KEY,
    at     REAL NOT NULL,
    tenant TEXT NOT NULL,
    scope  TEXT NOT NULL,
    label  TEXT NOT NULL,
    result TEXT NOT NULL  -- JSON array: the counts and states of what was forgotten
) STRICT, WITHOUT ROWID;
CREATE INDEX receipt_at ON receipt (at);
