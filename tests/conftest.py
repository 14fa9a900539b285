"""Settings for all tests."""

from hypothesis import settings

# Whether a change lands must not depend on luck: property tests try the same examples
# in each run. "make test-all" draws new ones.
settings.register_profile("same_examples", derandomize=True)
settings.load_profile("same_examples")
