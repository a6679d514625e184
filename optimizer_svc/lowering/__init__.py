"""How one materialized value becomes the straight-line body of a loop nest."""
