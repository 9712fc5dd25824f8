"""The configuration: one YAML file and the environment become one frozen Settings; nobody else reads either."""

from om_proxy.settings.admin_token import admin_token_line
from om_proxy.settings.effective import Effective, limits, thread_overrides
from om_proxy.settings.loading import config_file, load, parse
from om_proxy.settings.memory import ContextSettings, MemorySettings
from om_proxy.settings.model import Settings
from om_proxy.settings.report import attention_lines, effective_lines, shown, summary_lines, upstream_lines
from om_proxy.settings.service import StorageSettings, UpstreamSettings
from om_proxy.settings.watching import Watched

__all__ = [
    "ContextSettings",
    "Effective",
    "MemorySettings",
    "Settings",
    "StorageSettings",
    "UpstreamSettings",
    "Watched",
    "admin_token_line",
    "attention_lines",
    "config_file",
    "effective_lines",
    "limits",
    "load",
    "parse",
    "shown",
    "summary_lines",
    "thread_overrides",
    "upstream_lines",
]
