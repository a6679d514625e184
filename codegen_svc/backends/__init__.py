"""One folder for each vendor; the registry discovers them."""
