"""Name spans and attributes as OpenTelemetry's conventions for generative AI do.

These conventions are in development, and names still change. This file pins them: the attributes
are those of opentelemetry-semantic-conventions 0.66b2, and the memory operations those of the
conventions' memory spans. No library is imported for them, so that an update changes no name.
"""

from __future__ import annotations

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
CONVERSATION_ID = "gen_ai.conversation.id"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"  # seconds
MEMORY_STORE_ID = "gen_ai.memory.store.id"
MEMORY_RECORD_COUNT = "gen_ai.memory.record.count"
ERROR_TYPE = "error.type"
STATUS_CODE = "http.response.status_code"

CHAT = "chat"
EMBEDDINGS = "embeddings"
CREATE_MEMORY = "create_memory"
UPDATE_MEMORY = "update_memory"
DELETE_MEMORY = "delete_memory"

# ours: what memory did with the request, as in the receipt
MEMORY_STATUS = "om.status"
MEMORY_REASON = "om.reason"
TOKENS_RECEIVED = "om.tokens_received"
TOKENS_SENT = "om.tokens_sent"
