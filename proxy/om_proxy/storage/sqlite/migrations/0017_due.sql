-- The oldest due threads of one tenant after another, without looking at all that are due.
DROP INDEX thread_due;
CREATE INDEX thread_due ON thread (tenant, needs_caller, due) WHERE due IS NOT NULL;
