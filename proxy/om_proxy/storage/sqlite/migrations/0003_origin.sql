ALTER TABLE message ADD COLUMN origin BLOB; -- MessagePack of a reply's ReplyOrigin (memory/model.py), by which a request may name it; mostly NULL
