"""Each target is asked the way it names, and nobody pays for litellm before it is needed."""

from __future__ import annotations

import subprocess
import sys

from om_proxy.agents.llm import Prompt, Routed, Target
from tests.agents.scripted_llm import ScriptedLLM


async def test_routed() -> None:
    """Each target is asked the way it names."""
    near, far = ScriptedLLM.of("near"), ScriptedLLM.of("far")
    routed = Routed(near, far)
    prompt = Prompt("s", ("u",))
    assert (await routed.complete(Target("a", "litellm"), prompt)).text == "far"
    assert (await routed.complete(Target("b", "direct"), prompt)).text == "near"


def test_nothing_imports_litellm() -> None:
    """Neither the minds nor what is known of models costs litellm's import."""
    code = (
        "import sys; import om_proxy.agents.litellm_adapter, om_proxy.agents.direct, om_proxy.agents.observer, om_proxy.agents.reflector,"
        " om_proxy.agents.targets, om_proxy.models as c; c.find_price('gpt-4o'); c.create_encoder('gpt-4o')('x');"
        " c.list_model_warnings('gpt-4o');"
        " sys.exit('litellm' in sys.modules or 'openai' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
