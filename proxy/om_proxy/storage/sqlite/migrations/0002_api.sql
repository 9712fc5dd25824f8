ALTER TABLE message ADD COLUMN api TEXT; -- whose JSON `raw` is (ApiName of common/apis.py); NULL: of chat
