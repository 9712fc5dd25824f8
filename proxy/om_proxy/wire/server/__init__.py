"""A bounded HTTP/1.1 front on uvicorn. It knows neither memory nor any API."""
