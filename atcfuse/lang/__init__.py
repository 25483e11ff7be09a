"""What atcfuse says, in the reader's language.

Messages are English data: in reports, in diagnostics, in rule files. They become another language only while something
is rendered for people, in a block `with speaking("zh")`; JSON and what other programs read is never rendered in one.
Renderers `say` a template with its values. A finished message of the core, which may have come from a report file, is
told by `tell`: the catalog finds the template that it was made from.
"""

from atcfuse.lang.choice import LANGUAGES, VARIABLE, from_environment
from atcfuse.lang.speak import language, say, speaking, tell

__all__ = ["LANGUAGES", "VARIABLE", "from_environment", "language", "say", "speaking", "tell"]
