"""HTML pages that explain compiled programs and show a running farm.

A page is one file without external parts: style and script are inline, and its content security
policy allows these two by their hashes and nothing else. Everything that a client, a model or a
compiler named reaches the page through templates that escape it, or as compressed data that the
script inserts as text.
"""
