"""Random damage to text files, and random expressions of the rule language."""

from __future__ import annotations

import random
import re

TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?|\s+|.", re.S)
STRANGE = (
    *("9" * 5000, "9**9**9", "1e999", "-1", "0", "nan", ".inf", "\u0663", "0x10", "1_000", "''", '""', "null", "on"),
    *(
        "&a",
        "*a",
        "!!python/object/apply:os.system [id]",
        "<<: *a",
        "---",
        "...",
        "\t",
        "\x00",
        "\ufeff",
        "\ud83d\ude00",
    ),
    *("[" * 60, "{" * 60, "(" * 300, "- " * 60, "? ", ": ", "|", ">", "%", "@", "`", "$(id)", "../../../etc/passwd"),
    *("a" * 5000, "__import__('os')", "x.__class__", "lambda: 0", "[i for i in x]", "a if b else c", "層", "\u2028"),
)


def damaged(text: str, rng: random.Random) -> bytes:
    """The text with one to six faults in its lines, tokens or bytes."""
    for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
        text = rng.choice([_lines, _tokens, _tokens, _tokens])(text, rng)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.15 and data:
        made = bytearray(data)
        made[rng.randrange(len(made))] = rng.randrange(256)
        data = bytes(made)
    return data[: rng.randrange(len(data))] if rng.random() < 0.05 and data else data


def _lines(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at, size = rng.randrange(len(lines)), rng.choice([1, 1, 2, 5])
    kind = rng.choice(["drop", "repeat", "move", "indent", "strange"])
    if kind == "drop":
        del lines[at : at + size]
    elif kind == "repeat":
        lines[at:at] = lines[at : at + size]
    elif kind == "move":
        lines.insert(rng.randrange(len(lines)), lines.pop(at))
    elif kind == "indent":
        lines[at] = "  " + lines[at] if rng.random() < 0.5 else lines[at][2:]
    else:
        lines.insert(at, rng.choice(STRANGE) + "\n")
    return "".join(lines)


def _tokens(text: str, rng: random.Random) -> str:
    tokens = TOKEN.findall(text)
    words = [i for i, t in enumerate(tokens) if not t.isspace()]
    if not words:
        return text + rng.choice(STRANGE)
    at = rng.choice(words)
    kind = rng.choice(["drop", "repeat", "other", "other", "strange", "swap"])
    if kind == "drop":
        tokens[at] = ""
    elif kind == "repeat":
        tokens[at] = tokens[at] * rng.choice([2, 2, 40])
    elif kind == "other":
        tokens[at] = tokens[rng.choice(words)]
    elif kind == "strange":
        tokens[at] = rng.choice(STRANGE)
    else:
        other = rng.choice(words)
        tokens[at], tokens[other] = tokens[other], tokens[at]
    return "".join(tokens)


NAMES = ("x", "scores", "H", "B", "big", "text", "items", "none", "ratio", "missing")
FUNCTIONS = (
    *("scalar", "shape", "rank", "dim", "size", "dtype", "same_shape", "leading", "made_by", "is_number", "absent"),
    *(
        "present",
        "append",
        "length",
        "close",
        "each_of_pairs",
        "sqrt",
        "abs",
        "exp",
        "log",
        "rounded",
        "stored",
        "repeats_in",
        "rows_of_batches",
        "opset",
    ),
    *("is_uniform_along", "causal", "aligned", "quantized", "single_output", "rooted_in", "only", "nothing"),
)
LITERALS = (
    "0",
    "1",
    "-1",
    "2",
    "64",
    "1e308",
    "1e-308",
    "0.5",
    "9999999999999999999",
    "'a'",
    "''",
    "None",
    "...",
    "[]",
)


def expression(rng: random.Random, depth: int = 4) -> str:
    """A random expression, most of them well formed."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(NAMES if rng.random() < 0.6 else LITERALS)

    def part() -> str:
        return expression(rng, depth - 1)

    kind = rng.randrange(9)
    if kind <= 2:
        return f"({part()} {rng.choice(['+', '-', '*', '/', '//', '%', '**', '**'])} {part()})"
    if kind == 3:
        return f"({part()} {rng.choice(['<', '<=', '==', '!=', '>', '>=', 'in', 'not in', 'is'])} {part()})"
    if kind == 4:
        return f"({part()} {rng.choice(['and', 'or'])} {part()})"
    if kind == 5:
        return f"{rng.choice(['not ', '-', '+', '~'])}{part()}"
    if kind == 6:
        return f"[{', '.join(part() for _ in range(rng.randrange(4)))}]"
    if kind == 7:
        return f"({part()} if {part()} else {part()})"
    keywords = [f"{rng.choice(['axis', 'like', 'rtol', 'fill'])}={part()}"] if rng.random() < 0.15 else []
    return f"{rng.choice(FUNCTIONS)}({', '.join([part() for _ in range(rng.randrange(4))] + keywords)})"
