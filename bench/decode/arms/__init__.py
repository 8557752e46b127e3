"""What `bench.decode` runs on a ring over the internet, emulated or by a clock that jumps."""
