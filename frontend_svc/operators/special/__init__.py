"""Special functions of mathematics, as formulas and series."""
