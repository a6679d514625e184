"""Fitted coefficients of series, made by the tests' `fit_series.py`."""
