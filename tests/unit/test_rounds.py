"""When another round of fusing is worth its time."""

from __future__ import annotations

from infer_oracle import inferred
from onnx import parser

from atcfuse.match.values import Refusal
from atcfuse.rounds import another_round
from atcfuse.run import Kept

BODY = "d = If(flag) <then_branch = t () => (float[2,8] a) {{ a = Relu(x) }}, else_branch = e () => (float[2,8] b) {{ b = Neg(x) }}>\n"


def test_what_was_kept_in_a_body_that_is_gone_asks_for_no_round() -> None:
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,8] x, bool flag) => (float[2,8] y) '
    with_if = inferred(parser.parse_model(f"{head}{{ {BODY.replace('{{', '{').replace('}}', '}')} y = Abs(x) }}"))
    without = inferred(parser.parse_model(f"{head}{{ y = Abs(x) }}"))
    kept = [
        Kept(None, scope, node.name, node.index, Refusal(code, "", node.outputs[0]), frozenset({node.index}))  # type: ignore[arg-type]
        for scope in with_if.scopes()
        for node in scope.nodes
        for code in ("ATF301", "ATF313")
        if scope.parent is not None
    ]
    assert len(kept) == 4
    assert not another_round(kept, without)
