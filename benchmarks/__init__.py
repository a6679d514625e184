"""Speed beside a peer, in one run; never part of the tests."""
