"""Spans for OpenTelemetry, if `telemetry.otel` is on. Nothing here is imported while it is off."""
