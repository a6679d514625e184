"""The integer algebra of shapes and indices: expressions, their normal form, and proofs."""
