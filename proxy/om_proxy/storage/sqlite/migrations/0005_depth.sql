-- How often the words of an entry have been condensed: what tells the reflector which stretch of a log is due next.
ALTER TABLE observation ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;
UPDATE observation SET depth = 1 WHERE kind = 'reflection';
