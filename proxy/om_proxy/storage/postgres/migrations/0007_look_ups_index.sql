-- Forgetting a thread takes what others of its resource looked up, and finds it here.

CREATE INDEX message_look_ups ON om.message (thread_id) WHERE look_ups IS NOT NULL;
