"""Ways of writing a conversation that no chat template describes: turns to text, and a reply's text to its parts.

Pure: no tokenizer, no model. A model that has a chat template has no need of this.
"""

from duckfleet.runtime.dialect.conversation import (
    BadConversation,
    Dialect,
    Reply,
    ReplyReader,
    ToolCall,
    Turn,
    dialect_of,
)

__all__ = ["BadConversation", "Dialect", "Reply", "ReplyReader", "ToolCall", "Turn", "dialect_of"]
