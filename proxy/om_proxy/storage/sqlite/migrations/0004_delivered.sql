-- seq of the newest reply that is known to have gone out to its last byte; NULL where nobody has said so of any
ALTER TABLE thread ADD COLUMN delivered INTEGER;
