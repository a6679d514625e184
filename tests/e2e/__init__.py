"""Tests of the whole project through running farms."""
