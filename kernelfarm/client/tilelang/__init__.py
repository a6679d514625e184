"""Tile programs of TileLang: the text that TVM prints of them becomes the source of a kernel."""
