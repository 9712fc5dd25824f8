-- How far each webhook has got, so that a restart sends nothing again that its receiver has taken.
CREATE TABLE webhook (
    name     TEXT    PRIMARY KEY, -- a hash of its address
    cursor   INTEGER NOT NULL,    -- id of the last event that its receiver took
    failures INTEGER NOT NULL,    -- in a row
    cause    TEXT    NOT NULL,    -- of the last failure: our words
    at       REAL    NOT NULL     -- of the last attempt, in unix seconds
) STRICT;
