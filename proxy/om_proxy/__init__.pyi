from om_proxy.proof.conversation import Call, Conversation
from om_proxy.proof.readers.registry import read_history
from om_proxy.proof.stage import Stage, Turn

__all__ = ["Call", "Conversation", "Stage", "Turn", "read_history"]
__version__: str
