"""The words of the rule language that are built in: combinators of patterns and functions of expressions."""

COMBINATORS = frozenset({"strided", "merged", "same", "view", "part", "packed", "optional"})
"""Lower-case heads in patterns that are no fragments; `atcfuse.match.builtins` says what each does."""

FUNCTIONS = frozenset({
    "scalar", "is_number", "shape", "rank", "dim", "size", "dtype", "aligned", "same_shape", "repeats_in",
    "rows_of_batches",
    "leading", "made_by", "ends_projection", "single_output", "quantized", "read_outside", "is_uniform_along", "causal",
    "rooted_in",
    "only", "opset", "rounded", "stored", "absent", "present", "append", "length", "close", "each_of_pairs", "sqrt",
    "abs", "exp", "log", "unmasked", "inside", "repeats", "operand", "filled", "zero_sign",
    "is_known",
})  # fmt: skip
"""Functions that conditions and `let` may call; `atcfuse.match.functions` says what each does."""

TENSOR_FUNCTIONS = frozenset({"sqrt", "or_zero", "by_output", "by_output_in_groups", "per_channel", "per_column"})
"""Functions that `tensors` of rules of level `constant` may call; `atcfuse.fold` says what each does."""
