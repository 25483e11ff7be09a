"""Which language a person reads, as far as the environment tells."""

from __future__ import annotations

from collections.abc import Mapping

LANGUAGES = ("en", "zh")
"""Languages that atcfuse speaks, the one of the sources first."""

VARIABLE = "ATCFUSE_LANG"
"""The environment variable that settles the language of atcfuse alone."""

_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")


def from_environment(environ: Mapping[str, str]) -> str:
    """`ATCFUSE_LANG` as it is, else the language of the locale where it is one of `LANGUAGES`, else English.

    Of the locale's variables the first that is set counts, as POSIX has it: `zh_CN.UTF-8` and `zh-Hans` are Chinese.
    """
    if environ.get(VARIABLE):
        return environ[VARIABLE]
    locale = next((environ[name] for name in _LOCALE if environ.get(name)), "")
    return next((known for known in LANGUAGES if locale.lower().startswith(known)), LANGUAGES[0])
