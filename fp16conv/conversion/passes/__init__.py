"""The steps of a conversion, one onnx_ir pass per file, in the order `conversion.onnx` runs them."""
