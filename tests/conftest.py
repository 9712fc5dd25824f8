"""What holds for every test: a busy machine fails none of them."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)  # an example takes as long as the machine lets it
settings.load_profile("no deadline")
