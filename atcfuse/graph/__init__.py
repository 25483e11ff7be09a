"""The user's model: loading, saving, one light index a scope, symbolic shapes, views. Only here is onnx imported."""
