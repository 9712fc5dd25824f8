"""Turn one YAML file and the environment into one frozen Settings. No other module reads either."""

from om_proxy.settings.config.effective import (
    Effective,
    check_thread_overrides,
    compute_limits,
    merge_thread_overrides,
    parse_thread_overrides,
    read_valid_overrides,
)
from om_proxy.settings.config.loading import (
    find_config_file,
    load,
    load_named_store,
    parse,
    render_admin_token_file,
)
from om_proxy.settings.config.report import (
    THREAD_ORIGIN,
    SettingLine,
    find_model_origin,
    list_address_warnings,
    list_effective_settings,
    list_settings,
    list_warnings,
    render_memory_summary,
    render_settings,
    render_summary,
    render_upstreams,
    render_value,
)
from om_proxy.settings.config.sections.memory import ContextSettings, MemorySettings
from om_proxy.settings.config.sections.model_choice import REQUEST_MODELS
from om_proxy.settings.config.sections.service import UpstreamSettings, WebhookSettings
from om_proxy.settings.config.sections.storage import StorageSettings
from om_proxy.settings.config.snapshot import Settings
from om_proxy.settings.config.watching import WatchedSettings

__all__ = [
    "REQUEST_MODELS",
    "THREAD_ORIGIN",
    "ContextSettings",
    "Effective",
    "MemorySettings",
    "SettingLine",
    "Settings",
    "StorageSettings",
    "UpstreamSettings",
    "WatchedSettings",
    "WebhookSettings",
    "check_thread_overrides",
    "compute_limits",
    "find_config_file",
    "find_model_origin",
    "list_address_warnings",
    "list_effective_settings",
    "list_settings",
    "list_warnings",
    "load",
    "load_named_store",
    "merge_thread_overrides",
    "parse",
    "parse_thread_overrides",
    "read_valid_overrides",
    "render_admin_token_file",
    "render_memory_summary",
    "render_settings",
    "render_summary",
    "render_upstreams",
    "render_value",
]
