"""Each target is asked in its own way, and litellm is imported only when it is needed."""

from __future__ import annotations

import subprocess
import sys

from om_proxy.agents.model_access.llm import Prompt, Routed, Target
from tests.agents.scripted_llm import ScriptedLLM


async def test_routed() -> None:
    """Each target is asked in its own way."""
    near, far = ScriptedLLM.of("near"), ScriptedLLM.of("far")
    routed = Routed(near, far)
    prompt = Prompt("s", ("u",))
    assert (await routed.complete(Target("a", "litellm"), prompt)).text == "far"
    assert (await routed.complete(Target("b", "direct"), prompt)).text == "near"


def test_nothing_imports_litellm() -> None:
    """Neither the agents nor the facts about models import litellm."""
    code = (
        "import sys; import om_proxy.agents.model_access.litellm_adapter, om_proxy.agents.model_access.direct, om_proxy.agents.observer,"
        " om_proxy.agents.reflector,"
        " om_proxy.agents.model_access.targets, om_proxy.agents.models as c; c.find_price('gpt-4o'); c.create_encoder('gpt-4o')('x');"
        " c.list_model_warnings('gpt-4o');"
        " sys.exit('litellm' in sys.modules or 'openai' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
