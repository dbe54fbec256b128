"""The JSON of the HTTP API. One type validates a request, shapes an answer and describes both in OpenAPI.

Times and durations are milliseconds, bodies are text or base64. Requests refuse unknown fields and wrong
types; a field that may be left out is not the same as one that is null.
"""
