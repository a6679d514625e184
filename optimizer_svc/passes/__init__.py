"""The compiler's passes: one file each, values in and values out."""
