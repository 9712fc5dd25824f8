-- Moved rows leave copies in the unused parts of pages, which `secure_delete` does not clear. So the file is written anew before
-- what was asked for is done. This says for what it has been; what was forgotten before is asked for once more.
ALTER TABLE erasure ADD COLUMN rewritten INTEGER NOT NULL DEFAULT 0;
UPDATE erasure SET asked = asked + 1 WHERE asked > 0;
