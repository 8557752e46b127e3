"""The wallet of a registrar's treasury: lumps that come into it, and payouts that go out of it."""
