"""The sections of the configuration file, as pydantic models. Start with service.py."""
