"""Fitted coefficients of series; `fit_series.py` of the tests generates them."""
