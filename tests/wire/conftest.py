"""Property tests take as long as they need: this machine may be busy."""

from hypothesis import settings

settings.register_profile("ir", deadline=None, max_examples=60)
settings.load_profile("ir")
