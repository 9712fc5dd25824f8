-- Lists of threads: the most recent first, by what a name or a title begins with, and those that fail.
--
-- The column `live` of a message tells three things from now on: 1 live, 0 superseded, 2 an interrupted reply that was never live.
-- Interrupted replies stored before have 0.

CREATE INDEX thread_recent ON thread (tenant, ifnull(turn_at, created_at), id) WHERE thread <> '';
CREATE INDEX thread_recent_of_all ON thread (ifnull(turn_at, created_at), id) WHERE thread <> '';
-- No turn writes the next two: a commit leaves out a title that stays.
CREATE INDEX thread_name ON thread (tenant, thread);
CREATE INDEX thread_title ON thread (tenant, title) WHERE title IS NOT NULL;
CREATE INDEX thread_failing ON thread (tenant) WHERE failures > 0 AND parked = 0;
CREATE INDEX thread_parked ON thread (tenant) WHERE parked = 1;

-- `pending` is kept for every thread now, and the state knows the tokens of the log: a list counts nothing.
UPDATE thread SET pending = (SELECT ifnull(sum(tokens + 4), 0) FROM message WHERE thread_id = thread.id AND live = 1 AND seq > coverage)
    WHERE shared = 0;
UPDATE thread SET state = CAST(json_set(CAST(state AS TEXT), '$.log_tokens', (SELECT ifnull(sum(observation.tokens), 0) FROM entry
    JOIN observation ON observation.thread_id = entry.thread_id AND observation.id = observation_id
    WHERE entry.thread_id = thread.id AND entry.generation = thread.generation)) AS BLOB);
