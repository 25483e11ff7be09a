"""What a rule is: terms in ONNX's call notation, steps, fragments, rules. Knows no YAML and no model."""
