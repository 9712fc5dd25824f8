#!/usr/bin/env bash
# One turn of a thread with curl. Needs a running proxy and OPENAI_API_KEY. The same thread id again goes on with the conversation.
set -euo pipefail
curl -sS -i "${OPENAI_BASE_URL:-http://127.0.0.1:8400/v1}/chat/completions" \
  -H "Authorization: Bearer ${OPENAI_API_KEY:?set OPENAI_API_KEY}" \
  -H "Content-Type: application/json" \
  -H "X-OM-Thread: kitchen-worktop" \
  -H "X-OM-Resource: user-42" \
  -d '{"model": "gpt-5.4-mini", "messages": [{"role": "user", "content": "The worktop is 312 cm long. Remember that."}]}'
