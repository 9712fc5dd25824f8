-- The names of threads, resources and tenants that were asked to be forgotten, also where nothing of them was stored: a turn that began
-- before stores no first row of its thread. A name is its HMAC under the store's secret. Entries go by age and number.
--
-- A program that does not know this migration notes no name, and looks for none.
CREATE TABLE forgotten_name (
    digest BLOB PRIMARY KEY,
    at     REAL NOT NULL -- unix seconds
) WITHOUT ROWID;
CREATE INDEX forgotten_name_at ON forgotten_name (at);
